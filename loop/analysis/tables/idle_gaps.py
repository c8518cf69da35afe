"""Where the device idles: between which kernels, and what the host was launching then."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import ClassVar

from loop.analysis.capture import Capture
from loop.analysis.gaps import Gap
from loop.analysis.tables import Advice, Table, share_pct
from loop.analysis.work import label
from loop.record import Record


class GapRow(Record):
    """All gaps of a stage between the same two kernels."""

    stage: str
    """Of the pass before the gap."""
    before: str
    """What ended last; `other`: all gaps below the smallest share, so that shares sum to 100 in each stage."""
    after: str
    """What began next."""
    gaps: int
    """How many."""
    idle_us: float
    """Their sum."""
    share_pct: float
    """Of the stage's idle time."""
    step_pct: float
    """Of the stage's time."""
    max_us: float
    """The longest."""
    late_pct: float | None
    """Of the idle time, what passed before the host had launched what came next: near 100 the host is the
    bottleneck, near 0 the device waited for itself. None where the trace holds no launches."""
    python_location: str | None
    """Who launched what came next; for what a graph holds, its replay."""


class IdleGaps(Table):
    """Rows by stage and share."""

    name: ClassVar[str] = "idle_gaps"
    title: ClassVar[str] = "idle gaps"
    row: ClassVar[type[Record]] = GapRow
    brief: ClassVar[tuple[str, ...]] = ("stage", "before", "after", "gaps", "idle_us", "share_pct", "late_pct")

    min_share_pct: float = 1.0
    """Pairs below it are summed in the row `other`."""

    def rows(self, capture: Capture) -> tuple[GapRow, ...]:
        """By stage, that with the most passes first, then by idle time."""
        work = capture.work
        steps: dict[str, int] = defaultdict(int)
        for window in capture.windows:
            steps[stage_of(capture, window.passed)] += window.end_ns - window.start_ns
        groups: dict[tuple[str, str, str, str | None], list[Gap]] = defaultdict(list)
        idle: dict[str, int] = defaultdict(int)
        for gap in capture.gaps:
            stage = stage_of(capture, gap.passed)
            idle[stage] += gap.end_ns - gap.start_ns
            location = "the replay of a CUDA graph" if work.in_graph[gap.after] else work.origin[gap.after].location
            groups[stage, label(work, gap.before), label(work, gap.after), location].append(gap)
        found: list[GapRow] = []
        small: dict[str, list[Gap]] = defaultdict(list)
        for (stage, before, after, location), gaps in groups.items():
            row = make_row((stage, before, after, location), gaps, idle[stage], steps[stage])
            if row.share_pct < self.min_share_pct:
                small[stage] += gaps
            else:
                found.append(row)
        found += [make_row((s, "other", "other", None), gaps, idle[s], steps[s]) for s, gaps in small.items()]
        passes = Counter(stage_of(capture, window.passed) for window in capture.windows)
        found.sort(key=lambda r: (-passes[r.stage], r.stage, r.before == "other", -r.idle_us, r.before, r.after))
        return tuple(found)

    def advise(self, capture: Capture, rows: Sequence[GapRow]) -> Advice:
        """The pair that idles longest in the stage with the most passes."""
        stages = [stage_of(capture, window.passed) for window in capture.windows]
        usual = [row for row in rows if row.stage == max(stages, key=stages.count)] or rows
        top = next((row for row in usual if row.before != "other"), usual[0])
        stage = [row for row in rows if row.stage == top.stage]
        told = [row for row in stage if row.late_pct is not None]
        late = share_pct(sum(r.idle_us * (r.late_pct or 0) / 100 for r in told), sum(r.idle_us for r in told))
        idle = sum(row.step_pct for row in stage)
        total = sum(row.gaps for row in stage)
        look = (
            f"the device idles {idle:.0f} % of {top.stage}, in {total} gaps; the host is late for {late:.0f} % of "
            f"that; most between {top.before} and {top.after}: {top.gaps} times, {top.idle_us:.0f} µs"
        )
        if not capture.work.on_device:
            return Advice(
                look_first=f"{idle:.0f} % of {top.stage} lie between operators, in {total} gaps; most between "
                f"{top.before} and {top.after}: {top.gaps} times, {top.idle_us:.0f} µs",
                next_edit="see the table `host_functions` for what Python does between operators",
            )
        if late < 50:
            edit = f"see what {top.after} waits for: another stream, a copy, or the host reading a result"
        elif any(capture.work.in_graph):
            edit = f"shorten the host's way to {top.python_location or top.after}, or overlap it with the graph before"
        else:
            edit = "launch-bound: run this stage in a CUDA graph, else fuse the kernels that one function launches"
        return Advice(look_first=look, next_edit=edit)

    def why_empty(self, capture: Capture) -> str:
        """Less than two kernels."""
        return "the trace holds no gap between two kernels of a pass"


def stage_of(capture: Capture, passed: int) -> str:
    """The stage of a pass, of the whole trace for none."""
    return capture.passes[passed].stage if passed >= 0 else "all"


def make_row(key: tuple[str, str, str, str | None], gaps: Sequence[Gap], idle_ns: int, steps_ns: int) -> GapRow:
    """One row of some gaps."""
    stage, before, after, location = key
    lengths = [gap.end_ns - gap.start_ns for gap in gaps]
    told = [(gap.late_ns, gap.end_ns - gap.start_ns) for gap in gaps if gap.late_ns is not None]
    return GapRow(
        stage=stage,
        before=before,
        after=after,
        gaps=len(gaps),
        idle_us=sum(lengths) / 1000,
        share_pct=share_pct(sum(lengths), idle_ns),
        step_pct=share_pct(sum(lengths), steps_ns),
        max_us=max(lengths) / 1000,
        late_pct=share_pct(sum(late for late, _ in told), sum(length for _, length in told)) if told else None,
        python_location=location,
    )
