"""What a forward pass does, kernel by kernel, once for each kind of layer."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.clusters import find_clusters, list_layers
from loop.analysis.names import simplify
from loop.analysis.tables import Advice, Table, share_pct
from loop.record import Record


class FlowRow(Record):
    """One kernel."""

    stage: str
    """Of the pass."""
    part: str
    """`before` the layers, a cluster of layers (its exemplar is shown), or `after` them."""
    times: int
    """How often this part runs in a pass."""
    number: int
    """In its part, by start."""
    category: str
    """What kind of work it is."""
    short_name: str
    """Without arguments, namespaces and tile sizes."""
    projection: str | None
    """The usual name of the weight."""
    dur_us: float
    """How long it ran."""
    part_pct: float
    """Of its part's sum of durations."""
    start_us: float
    """From the start of the part."""
    gap_us: float
    """Between the end of all that ran before in its part and its start; negative where they overlap."""
    stream: str
    """Where it ran."""
    input_dims: str | None
    """Of the operator's tensors."""
    python_location: str | None
    """Who launched it."""


class ComputeFlow(Table):
    """Rows by stage, part and time."""

    name: ClassVar[str] = "compute_flow"
    title: ClassVar[str] = "compute flow"
    row: ClassVar[type[Record]] = FlowRow
    brief: ClassVar[tuple[str, ...]] = (
        "part",
        "times",
        "number",
        "short_name",
        "projection",
        "dur_us",
        "part_pct",
        "gap_us",
    )

    def rows(self, capture: Capture) -> tuple[FlowRow, ...]:
        """What comes before the layers, one layer of each cluster, what comes after."""
        found: list[FlowRow] = []
        clusters = find_clusters(capture, list_layers(capture))
        for stage in dict.fromkeys(cluster.stage for cluster in clusters):
            mine = [cluster for cluster in clusters if cluster.stage == stage]
            passed = mine[0].exemplar.passed
            rows = capture.work.rows(passed)
            inside = np.flatnonzero(capture.layers.number[rows] >= 0)
            outside = capture.layers.number[rows] < 0
            first, last = inside[0], inside[-1]
            found += self._part(capture, stage, "before", 1, rows[:first].tolist())
            for cluster in mine:
                found += self._part(capture, stage, cluster.id, len(cluster.numbers), cluster.exemplar.rows)
            found += self._part(capture, stage, "after", 1, rows[last + 1 :][outside[last + 1 :]].tolist())
        return tuple(found)

    def _part(self, capture: Capture, stage: str, part: str, times: int, rows: Sequence[int]) -> list[FlowRow]:
        work = capture.work
        if not len(rows):
            return []
        origin = int(work.start_ns[rows[0]])
        total = int(work.time_ns[list(rows)].sum())
        reached = origin
        found = []
        for number, row in enumerate(rows):
            start = int(work.start_ns[row])
            found.append(
                FlowRow(
                    stage=stage,
                    part=part,
                    times=times,
                    number=number,
                    category=work.category[row],
                    short_name=simplify(work.name[row]),
                    projection=work.origin[row].projection if work.category[row] == "gemm" else None,
                    dur_us=int(work.time_ns[row]) / 1000,
                    part_pct=share_pct(int(work.time_ns[row]), total),
                    start_us=(start - origin) / 1000,
                    gap_us=(start - reached) / 1000,
                    stream=capture.trace.lanes[int(work.lane[row])][1],
                    input_dims=work.origin[row].shapes or None,
                    python_location=work.origin[row].location,
                )
            )
            reached = max(reached, int(work.end_ns[row]))
        return found

    def advise(self, capture: Capture, rows: Sequence[FlowRow]) -> Advice:
        """The kernel that takes most of a pass, and the small ones around."""
        top = max(rows, key=lambda row: (row.dur_us * row.times, row.part, -row.number))
        tiny = [row for row in rows if row.part == top.part and row.dur_us < 3]
        what = f"{top.short_name}{f' ({top.projection})' if top.projection else ''}"
        return Advice(
            look_first=f"{what}, number {top.number} of {top.part}, costs {top.dur_us * top.times:.0f} µs a pass "
            f"({top.times} times {top.dur_us:.1f} µs)",
            next_edit=f"{len(tiny)} kernels of that part run under 3 µs each: see `fusion` for which of them can be one"
            if len(tiny) > 2
            else "compare it with its roofline (`loop analyze --roofline`)",
        )

    def why_empty(self, capture: Capture) -> str:
        """No layers, no flow."""
        return "layers cannot be told; see the table `layers`"
