"""What differs between two profiles: which kernels appeared, vanished, became slower or faster, per forward pass."""

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.analysis.capture import Capture
from loop.analysis.names import simplify
from loop.analysis.tables import Advice, Filled, describe, share_pct
from loop.record import Record

MOVED_PCT = 5.0
"""Change of a kernel's time, in per cent of what it was, below which it is called unchanged."""
MIN_STAGE_PCT = 0.5
"""Change in per cent of the stage's time below which kernels are summed in the row `other`."""


class DifferenceRow(Record):
    """One kernel (on a CPU one operator) of a stage, before and after. Times and launches are of one forward pass."""

    stage: str
    """Of the passes."""
    status: Literal["appeared", "vanished", "slower", "faster", "unchanged", "other"]
    """other: the sum of all changes too small to be listed, so that differences sum to the stage's."""
    kernel: str
    """Its full name."""
    short_name: str
    """Without arguments, namespaces and tile sizes."""
    category: str
    """What kind of work it is."""
    before_us: float
    """A pass, 0 if it did not run."""
    after_us: float
    """Likewise."""
    delta_us: float
    """After minus before."""
    before_share_pct: float
    """Of the stage's sum."""
    after_share_pct: float
    """Likewise."""
    delta_share_pct: float
    """In percentage points."""
    before_launches: float
    """A pass, on average."""
    after_launches: float
    """Likewise."""
    python_location: str | None
    """Who launches it: after, else before."""


class _Side(Record):
    time_us: float = 0.0
    launches: float = 0.0
    category: str = "other"
    location: str | None = None


class Difference(Record):
    """Two profiles side by side."""

    name: ClassVar[str] = "difference"
    title: ClassVar[str] = "difference"

    def fill(self, before: Sequence[Capture], after: Sequence[Capture]) -> Filled:
        """The table, the largest change first. Stages that one of both lacks are left out."""
        old, new = _per_pass(before), _per_pass(after)
        stages = [stage for stage in old if stage in new]
        rows = [row for stage in stages for row in _compare(stage, old[stage], new[stage])]
        rows.sort(key=lambda r: (r.status in ("other", "unchanged"), -abs(r.delta_us), r.stage, r.kernel))
        return Filled(
            table=self.name,
            title=self.title,
            columns=describe(DifferenceRow),
            brief=("stage", "status", "short_name", "before_us", "after_us", "delta_us", "python_location"),
            rows=tuple(row.document() for row in rows),
            why_empty="" if rows else f"no stage is in both: {', '.join(old) or 'none'} before, {', '.join(new)} after",
            advice=_advise(rows, stages) if rows else None,
        )


def _per_pass(captures: Sequence[Capture]) -> dict[str, dict[str, _Side]]:
    """Stage → kernel → what it takes in one pass of the stage, over all captures that have the stage."""
    rows: dict[str, dict[str, list[tuple[Capture, int]]]] = defaultdict(lambda: defaultdict(list))
    passes: dict[str, int] = defaultdict(int)
    for capture in captures:
        for stage in {p.stage for p in capture.passes} or {"all"}:
            passes[stage] += sum(p.stage == stage for p in capture.passes) or 1
        for row, stage in enumerate(capture.work.stage):
            if stage != "between":
                rows[stage][capture.work.name[row]].append((capture, row))
    return {
        stage: {name: _side(mine, passes[stage] or 1) for name, mine in kernels.items()}
        for stage, kernels in rows.items()
    }


def _side(rows: Sequence[tuple[Capture, int]], num_passes: int) -> _Side:
    longest, place = max(rows, key=lambda item: int(item[0].work.time_ns[item[1]]))
    return _Side(
        time_us=sum(int(capture.work.time_ns[row]) for capture, row in rows) / 1000 / num_passes,
        launches=len(rows) / num_passes,
        category=longest.work.category[place],
        location=longest.work.origin[place].location,
    )


def _compare(stage: str, old: dict[str, _Side], new: dict[str, _Side]) -> list[DifferenceRow]:
    """The rows of a stage; small changes summed in one."""
    totals = [sum(side.time_us for side in sides.values()) for sides in (old, new)]
    found: list[DifferenceRow] = []
    small: list[DifferenceRow] = []
    for kernel in sorted({*old, *new}):
        before, after = old.get(kernel), new.get(kernel)
        row = _row(stage, _status(before, after), kernel, before or _Side(), after or _Side(), totals)
        (small if abs(share_pct(row.delta_us, totals[0])) < MIN_STAGE_PCT else found).append(row)
    if small:
        sides = (
            _Side(time_us=sum(r.before_us for r in small), launches=sum(r.before_launches for r in small)),
            _Side(time_us=sum(r.after_us for r in small), launches=sum(r.after_launches for r in small)),
        )
        found.append(_row(stage, "other", "other", *sides, totals))
    return found


def _status(
    before: _Side | None, after: _Side | None
) -> Literal["appeared", "vanished", "slower", "faster", "unchanged"]:
    if before is None or after is None:
        return "appeared" if before is None else "vanished"
    change = share_pct(after.time_us - before.time_us, before.time_us)
    if abs(change) < MOVED_PCT:
        return "unchanged"
    return "slower" if change > 0 else "faster"


def _row(
    stage: str,
    status: Literal["appeared", "vanished", "slower", "faster", "unchanged", "other"],
    kernel: str,
    before: _Side,
    after: _Side,
    totals: Sequence[float],
) -> DifferenceRow:
    shares = [share_pct(side.time_us, total) for side, total in zip((before, after), totals, strict=True)]
    return DifferenceRow(
        stage=stage,
        status=status,
        kernel=kernel,
        short_name=simplify(kernel),
        category=after.category if after.launches else before.category,
        before_us=before.time_us,
        after_us=after.time_us,
        delta_us=after.time_us - before.time_us,
        before_share_pct=shares[0],
        after_share_pct=shares[1],
        delta_share_pct=shares[1] - shares[0],
        before_launches=before.launches,
        after_launches=after.launches,
        python_location=after.location or before.location,
    )


def _advise(rows: Sequence[DifferenceRow], stages: Sequence[str]) -> Advice:
    """The stages' sums, and the largest change."""
    sums = []
    for stage in stages:
        before = sum(row.before_us for row in rows if row.stage == stage)
        after = sum(row.after_us for row in rows if row.stage == stage)
        sums.append(f"{stage} {before:.0f} → {after:.0f} µs a pass ({share_pct(after - before, before):+.1f} %)")
    top = rows[0]
    if top.status in ("other", "unchanged"):
        return Advice(
            look_first=f"{'; '.join(sums)}; no kernel moved",
            next_edit="the change did not reach the device: prove it is engaged, or look at the host (`idle_gaps`)",
        )
    came = [row for row in rows if row.status == "appeared" and row.stage == top.stage]
    became = top.status if top.status in ("appeared", "vanished") else f"became {top.status}"
    edit = f"see {top.python_location or top.short_name}: {top.short_name} {became}"
    if top.status == "vanished" and came:
        edit += f", and {came[0].short_name} appeared: compare the two on their shapes"
    return Advice(
        look_first=f"{'; '.join(sums)}; most by {top.short_name} ({top.status}, {top.delta_us:+.1f} µs)", next_edit=edit
    )
