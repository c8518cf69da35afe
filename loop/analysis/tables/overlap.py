"""Which kernels could run beside others, and which already do."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.names import simplify
from loop.analysis.tables import NO_KERNELS, Advice, Table, share_pct
from loop.analysis.trace import Ints
from loop.analysis.work import Work
from loop.record import Record

CLASSES = {"communication": "communication", "memory": "memory"}
SMALL = ("elementwise", "activation", "norm", "rope", "softmax", "quantize", "reduce_topk", "sampling")
WEIGHTS = {"communication": 1.3, "memory": 1.15, "elementwise": 1.0, "other": 0.8, "compute": 0.35}
"""How much a class of kernels gains from running beside another: copies and transfers most, matrix products least."""
MIN_US = 5.0
HEADROOM = 0.45
"""Share of a kernel's time alone on the device from which overlap could gain."""
HIDDEN = 0.65
"""Share beside another stream from which a small kernel costs next to nothing."""
ALONE = 0.85
LAUNCH_BOUND = 0.5
"""Idle share of a stage from which its neighbours say nothing, because the host spaces them."""
TIGHT_SHARE = 0.5
"""Of the launches with a neighbour close by, from which the kernel seems to depend on it."""


class OverlapRow(Record):
    """One kernel of a stage."""

    priority: int
    """1: try it first; 5: leave it."""
    verdict: str
    """try overlap, try fusion, check dependencies, defer, hidden already, skip."""
    stage: str
    """Of its passes."""
    kernel: str
    """Without arguments, namespaces and tile sizes."""
    work_class: str
    """compute, communication, memory, elementwise or other."""
    python_scope: str | None
    """Who launched most of it."""
    formal_us: float
    """The sum of its durations."""
    share_pct: float
    """Of the stage's sum of durations."""
    excl_pct: float
    """Of its time, alone on the device."""
    hid_pct: float
    """Of its time, while another stream was busy; with `excl_pct` 100."""
    dep_prev: bool
    """Whether most launches follow another kernel of the stream closely."""
    dep_next: bool
    """Whether most are followed closely."""
    dep_risk: str
    """low, previous, next or both: whom it may have to wait for, or keep waiting."""
    recommendation: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class _Group:
    stage: str
    kernel: str
    rows: list[int]
    total_ns: int
    exclusive: float
    share_pct: float
    work_class: str
    prev: bool
    next: bool

    @property
    def risk(self) -> str:
        if self.prev and self.next:
            return "both"
        return "previous" if self.prev else "next" if self.next else "low"


class Overlap(Table):
    """Rows by priority and what could be gained."""

    name: ClassVar[str] = "overlap"
    title: ClassVar[str] = "overlap opportunities"
    row: ClassVar[type[Record]] = OverlapRow
    brief: ClassVar[tuple[str, ...]] = (
        "priority",
        "verdict",
        "stage",
        "kernel",
        "formal_us",
        "share_pct",
        "excl_pct",
        "dep_risk",
    )

    num_rows: int = 10
    """At most so many of a stage."""
    min_share_pct: float = 1.0
    """Below it a kernel is skipped (priority 5)."""

    def rows(self, capture: Capture) -> tuple[OverlapRow, ...]:
        """Kernels alone on the device that could be hidden, and small ones that are hidden already."""
        work = capture.work
        if not work.on_device:
            return ()
        found: list[OverlapRow] = []
        for stage in dict.fromkeys(work.stage):
            if stage == "between":
                continue
            idle = _idle_share(capture, stage)
            groups = _group(work, stage)
            wanted = [g for g in groups if g.total_ns >= 1000 * MIN_US and _matters(g)]
            wanted.sort(key=lambda g: (-WEIGHTS[g.work_class] * g.exclusive * g.total_ns, g.kernel))
            found += [self._judge(work, g, idle) for g in wanted[: self.num_rows]]
        weight = {row.kernel: WEIGHTS[row.work_class] * row.excl_pct * row.formal_us for row in found}
        return tuple(sorted(found, key=lambda r: (r.priority, -weight[r.kernel], r.stage, r.kernel)))

    def _judge(self, work: Work, group: _Group, idle: float) -> OverlapRow:
        priority, verdict, advice = self._verdict(group, idle)
        sites: Counter[str] = Counter()
        for row in group.rows:
            if location := work.origin[row].location:
                sites[location] += int(work.time_ns[row])
        return OverlapRow(
            priority=priority,
            verdict=verdict,
            stage=group.stage,
            kernel=group.kernel,
            work_class=group.work_class,
            python_scope=sites.most_common(1)[0][0] if sites else None,
            formal_us=group.total_ns / 1000,
            share_pct=group.share_pct,
            excl_pct=100 * group.exclusive,
            hid_pct=100 * (1 - group.exclusive),
            dep_prev=group.prev,
            dep_next=group.next,
            dep_risk=group.risk,
            recommendation=advice,
        )

    def _verdict(self, group: _Group, idle: float) -> tuple[int, str, str]:
        if idle >= LAUNCH_BOUND:
            return 5, "skip", f"the device idles {100 * idle:.0f} % of this stage: the host is the bottleneck"
        if group.share_pct < self.min_share_pct:
            return 5, "skip", f"under {self.min_share_pct:g} % of the stage: leave it"
        if group.exclusive <= 1 - HIDDEN:
            return 4, "hidden already", "it runs beside another stream; making it faster gains little"
        if group.exclusive >= HEADROOM and group.work_class != "compute":
            if group.risk != "low":
                return 2, "check dependencies", f"tied to its neighbours ({group.risk})? fuse it, or prove it is not"
            if group.work_class == "communication":
                return 1, "try overlap", "split the batch or the hidden size so that it runs beside the next product"
            return 1, "try fusion", "put it into the kernel before or after, or on a side stream"
        if group.exclusive >= ALONE and group.risk == "low":
            return 3, "defer", "alone on the device and free of its neighbours, but large: a faster kernel gains more"
        return 5, "skip", "a second stream has nothing else to run meanwhile"

    def advise(self, capture: Capture, rows: Sequence[OverlapRow]) -> Advice:
        """The first row, and whether the device has more than one stream at work."""
        top = rows[0]
        hidden = share_pct(float(capture.work.hidden_ns.sum()), float(capture.work.time_ns.sum()))
        look = (
            f"{hidden:.0f} % of kernel time runs beside another stream; {top.kernel} ({top.share_pct:.1f} % of "
            f"{top.stage}) is alone for {top.excl_pct:.0f} % of its time"
        )
        if top.priority > 2:
            return Advice(
                look_first=f"{look}: {top.recommendation}",
                next_edit="nothing here is worth a stream of its own: see `idle_gaps`, then `kernels` and `fusion`",
            )
        return Advice(look_first=look, next_edit=f"{top.kernel}: {top.recommendation}")

    def why_empty(self, capture: Capture) -> str:
        """No device, or nothing long enough."""
        return f"no kernel sums to {MIN_US:g} µs and could be hidden" if capture.work.on_device else NO_KERNELS


def _idle_share(capture: Capture, stage: str) -> float:
    """How much of a stage's steps the device idles, 0 to 1; 0 if graphs space its kernels and not the host."""
    work = capture.work
    replayed = [bool(inside) for inside, of in zip(work.in_graph, work.stage, strict=True) if of == stage]
    if sum(replayed) > len(replayed) / 2:
        return 0.0
    mine = [w for w in capture.windows if w.passed >= 0 and capture.passes[w.passed].stage == stage]
    time = sum(w.end_ns - w.start_ns for w in mine)
    return 1 - sum(w.busy_ns for w in mine) / time if time else 0.0


def classify(category: str) -> str:
    """compute, communication, memory, elementwise or other."""
    if category in CLASSES:
        return CLASSES[category]
    if category in SMALL:
        return "elementwise"
    return "other" if category == "other" else "compute"


def _matters(group: _Group) -> bool:
    """Whether it could be hidden, or is small and hidden already."""
    return group.exclusive >= HEADROOM or (group.work_class in ("elementwise", "memory", "compute"))


def _group(work: Work, stage: str) -> list[_Group]:
    """The kernels of a stage by short name."""
    rows = [row for row, of in enumerate(work.stage) if of == stage]
    total = int(work.time_ns[rows].sum())
    close_before, close_after = _tight(work)
    grouped: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        grouped[simplify(work.name[row])].append(row)
    found = []
    for kernel, mine in grouped.items():
        time, hidden = int(work.time_ns[mine].sum()), int(work.hidden_ns[mine].sum())
        found.append(
            _Group(
                stage=stage,
                kernel=kernel,
                rows=mine,
                total_ns=time,
                exclusive=(time - hidden) / time if time else 0.0,
                share_pct=share_pct(time, total),
                work_class=classify(Counter(work.category[row] for row in mine).most_common(1)[0][0]),
                prev=bool(close_before[mine].mean() >= TIGHT_SHARE),
                next=bool(close_after[mine].mean() >= TIGHT_SHARE),
            )
        )
    return found


def _tight(work: Work) -> tuple[Ints, Ints]:
    """For each kernel whether the one before, and the one after, on its stream is close.

    Nearer than 15 % of its duration, 2 µs at least and 20 µs at most.
    """
    before, after = np.zeros(len(work), dtype=bool), np.zeros(len(work), dtype=bool)
    for stream in np.unique(work.lane):
        rows = np.flatnonzero(work.lane == stream)
        near = np.clip(0.15 * work.time_ns[rows], 2_000, 20_000)
        space = work.start_ns[rows[1:]] - work.end_ns[rows[:-1]]
        before[rows[1:]] = space <= near[1:]
        after[rows[:-1]] = space <= near[:-1]
    return before, after
