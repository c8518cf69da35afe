"""Which layers do the same, and what one of each kind costs."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import ClassVar

from loop.analysis.capture import Capture
from loop.analysis.clusters import Cluster, find_clusters, list_layers
from loop.analysis.tables import Advice, Table, share_pct
from loop.record import Record
from loop.wording import count


class ClusterRow(Record):
    """Layers of one stage with (nearly) the same kernels in the same order, and like walls."""

    cluster: str
    """Its name: the stage, then a number by size."""
    stage: str
    """Of its passes."""
    kind: str
    """What most of its layers are called; a label only, the kernels decide."""
    num_layers: int
    """Of the model."""
    layer_ids: str
    """Which ones: `0-2, 4-6`."""
    avg_wall_us: float
    """Of one layer in one pass, first kernel to last."""
    std_wall_us: float
    """Over layers and passes."""
    avg_sum_us: float
    """Of its kernels' durations."""
    share_pct: float
    """Of all layers' kernel time in the stage."""
    num_kernels: float
    """In one layer, on average."""
    parts_pct: dict[str, float]
    """Category → its share of the kernels' time, largest first."""
    signature_sha: str
    """Of the kernels' order, the same in any trace of that layer: 12 hex digits."""
    exemplar_layer: int
    """The layer of median wall; the table `compute_flow` shows it."""
    exemplar_pass: int
    """The pass it is taken from."""


class LayerClusters(Table):
    """Rows by stage and size."""

    name: ClassVar[str] = "layer_clusters"
    title: ClassVar[str] = "layer clusters"
    row: ClassVar[type[Record]] = ClusterRow
    brief: ClassVar[tuple[str, ...]] = (
        "cluster",
        "kind",
        "num_layers",
        "layer_ids",
        "avg_wall_us",
        "avg_sum_us",
        "share_pct",
    )

    def rows(self, capture: Capture) -> tuple[ClusterRow, ...]:
        """Every cluster; together they hold every layer."""
        clusters = find_clusters(capture, list_layers(capture))
        totals: Counter[str] = Counter()
        for cluster in clusters:
            totals[cluster.stage] += sum(layer.sum_ns for layer in cluster.layers)
        return tuple(make_row(capture, cluster, totals[cluster.stage]) for cluster in clusters)

    def advise(self, capture: Capture, rows: Sequence[ClusterRow]) -> Advice:
        """The costliest cluster."""
        top = max(rows, key=lambda row: (row.share_pct, row.cluster))
        part, pct = next(iter(top.parts_pct.items()))
        layers, times = count(top.num_layers, "layer"), count(top.num_layers, "time")
        return Advice(
            look_first=f"{layers} of kind {top.kind} ({top.cluster}) took {top.share_pct:.0f} % of the layers' kernel "
            f"time in {top.stage}, {top.avg_sum_us:.0f} µs each, {pct:.0f} % of it {part}",
            next_edit=f"one kernel saved there is saved {times} a pass: layer {top.exemplar_layer} in `compute_flow`",
        )

    def why_empty(self, capture: Capture) -> str:
        """No layers, no clusters."""
        return "layers cannot be told; see the table `layers`"


def make_row(capture: Capture, cluster: Cluster, total_ns: int) -> ClusterRow:
    """One cluster."""
    parts: Counter[str] = Counter()
    for layer in cluster.layers:
        for row in layer.rows:
            parts[capture.work.category[row]] += int(capture.work.time_ns[row])
    sum_ns = sum(layer.sum_ns for layer in cluster.layers)
    walls = [layer.wall_ns / 1000 for layer in cluster.layers]
    exemplar = cluster.exemplar
    return ClusterRow(
        cluster=cluster.id,
        stage=cluster.stage,
        kind=cluster.kind,
        num_layers=len(cluster.numbers),
        layer_ids=ranges(cluster.numbers),
        avg_wall_us=fmean(walls),
        std_wall_us=pstdev(walls),
        avg_sum_us=sum_ns / 1000 / len(cluster.layers),
        share_pct=share_pct(sum_ns, total_ns),
        num_kernels=fmean(len(layer.rows) for layer in cluster.layers),
        parts_pct={part: share_pct(time, sum_ns) for part, time in parts.most_common()},
        signature_sha=hashlib.sha256(repr(cluster.signature).encode()).hexdigest()[:12],
        exemplar_layer=exemplar.number,
        exemplar_pass=exemplar.passed,
    )


def ranges(numbers: Sequence[int]) -> str:
    """`0-2, 4` of [0, 1, 2, 4]."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1].append(number)
        else:
            pieces.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in pieces)
