"""What each layer of the model took, pass by pass."""

from collections.abc import Sequence
from typing import ClassVar

from loop.analysis.capture import Capture
from loop.analysis.clusters import Layer, find_clusters, list_layers
from loop.analysis.gaps import busy_ns
from loop.analysis.tables import Advice, Table
from loop.record import Record

COLUMNS = ("attention", "linear_attention", "moe", "gemm", "norm", "quantize", "communication")
"""Categories with a column of their own."""


class LayerRow(Record):
    """One layer in one pass."""

    number: int
    """Of the forward pass."""
    stage: str
    """Of the pass."""
    layer: int
    """In the model, from 0."""
    kind: str
    """The class of the layer's module, where the trace or its mapping names it; else what it does."""
    cluster: str
    """See the table `layer_clusters`."""
    wall_us: float
    """From the start of its first kernel to the end of its last."""
    sum_us: float
    """Of its kernels' durations; more than the wall where streams overlap."""
    gap_us: float
    """Of the wall, when none of its kernels ran."""
    attention_us: float
    """Softmax attention."""
    linear_attention_us: float
    """Gated delta nets, Mamba and their kin, with their convolutions."""
    moe_us: float
    """Routing and experts."""
    gemm_us: float
    """Other matrix products."""
    norm_us: float
    """Normalizations, fused ones too."""
    quantize_us: float
    """Casts to and from quantized formats."""
    communication_us: float
    """Between ranks."""
    other_us: float
    """All else, so that the eight sum to `sum_us`."""
    num_kernels: int
    """Of them all."""
    num_allreduce: int
    """Of them, all-reduces."""
    method: str
    """How layers were told: modules, mapping, anchor or rhythm."""
    confidence: float
    """1 if known; else how alike the layers are, 0.7 at least."""


class Layers(Table):
    """Rows by pass and layer."""

    name: ClassVar[str] = "layers"
    title: ClassVar[str] = "layers"
    row: ClassVar[type[Record]] = LayerRow
    brief: ClassVar[tuple[str, ...]] = (
        "number",
        "stage",
        "layer",
        "kind",
        "cluster",
        "wall_us",
        "sum_us",
        "gap_us",
        "num_kernels",
    )

    def rows(self, capture: Capture) -> tuple[LayerRow, ...]:
        """One for each layer of each pass."""
        layers = list_layers(capture)
        cluster = {(c.stage, n): c.id for c in find_clusters(capture, layers) for n in c.numbers}
        return tuple(make_row(capture, layer, cluster[layer.stage, layer.number]) for layer in layers)

    def advise(self, capture: Capture, rows: Sequence[LayerRow]) -> Advice:
        """The layer farthest above the median of its kind, and the parts of a typical one."""
        slowest = max(rows, key=lambda row: (row.wall_us, -row.number, -row.layer))
        gaps = sum(row.gap_us for row in rows) / sum(row.wall_us for row in rows) * 100
        parts = {part: sum(getattr(row, f"{part}_us") for row in rows) for part in (*COLUMNS, "other")}
        part = max(parts, key=lambda p: parts[p])
        return Advice(
            look_first=f"layer {slowest.layer} of pass {slowest.number} ({slowest.kind}) takes longest, "
            f"{slowest.wall_us:.0f} µs; of all layers' wall {gaps:.0f} % are gaps, and {part} is the largest part",
            next_edit="close the gaps first (`idle_gaps`)"
            if gaps > 30
            else "see `layer_clusters` for whether that layer differs from its kind, then `compute_flow`",
        )

    def why_empty(self, capture: Capture) -> str:
        """They could not be told."""
        guessed = [value for value in capture.layers.confidence.values() if value < 1]
        seen = f" (pieces between norms are only {max(guessed):.2f} alike; 0.7 are asked for)" if guessed else ""
        return (
            f"layers cannot be told{seen}: give a mapping trace of the same stage (graphs off, with stacks), or name "
            "with --anchor a kernel that begins every layer"
        )


def make_row(capture: Capture, layer: Layer, cluster: str) -> LayerRow:
    """One layer in one pass."""
    work, rows = capture.work, list(layer.rows)
    parts = dict.fromkeys((*COLUMNS, "other"), 0)
    for row in rows:
        category = work.category[row]
        parts[category if category in parts else "other"] += int(work.time_ns[row])
    busy = busy_ns(work, rows) if work.on_device else layer.sum_ns
    return LayerRow(
        number=layer.passed,
        stage=layer.stage,
        layer=layer.number,
        kind=layer.kind,
        cluster=cluster,
        wall_us=layer.wall_ns / 1000,
        sum_us=layer.sum_ns / 1000,
        gap_us=(layer.wall_ns - busy) / 1000,
        **{f"{part}_us": time / 1000 for part, time in parts.items()},
        num_kernels=len(rows),
        num_allreduce=sum("reduce" in work.name[r].lower() and work.category[r] == "communication" for r in rows),
        method=capture.layers.method[layer.passed],
        confidence=capture.layers.confidence[layer.passed],
    )
