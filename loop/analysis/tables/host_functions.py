"""What the host did: Python functions by the time that is their own."""

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.names import module_kind, shorten_frame
from loop.analysis.nesting import outermost, own_time_ns
from loop.analysis.tables import Advice, Table, share_pct
from loop.record import Record

WAITS = (
    "synchronize",
    "item of Tensor",
    "cpu of Tensor",
    "tolist of Tensor",
    "recv",
    "poll",
    "sleep",
    "acquire",
    "wait",
)
"""Functions in which the host waits for the device or for others."""
BUILT_IN = re.compile(r"^<built-in (.+?)(?: of \S*pybind11\S*)?(?: object)?(?: at 0x[0-9a-f]+)?>$")
"""What of it is the same in every run."""


class HostRow(Record):
    """One Python function, in the threads that run operators or launch kernels."""

    function: str
    """File, the line where it begins, and name; `other`: all below the smallest share, so that shares sum to 100."""
    calls: int
    """How often it was called."""
    self_us: float
    """Its own time, without what it called."""
    self_pct: float
    """Of all functions' own time."""
    total_us: float
    """With what it called; recursion counts once."""
    total_pct: float
    """Likewise, of the same whole."""
    waits: bool
    """Whether the host waits in it."""


class HostFunctions(Table):
    """Rows by own time."""

    name: ClassVar[str] = "host_functions"
    title: ClassVar[str] = "host functions"
    row: ClassVar[type[Record]] = HostRow
    brief: ClassVar[tuple[str, ...]] = ("function", "calls", "self_us", "self_pct", "total_us")

    min_share_pct: float = 0.5
    """Functions with less own time are summed in the row `other`."""

    def rows(self, capture: Capture) -> tuple[HostRow, ...]:
        """The largest own time first, `other` last."""
        trace = capture.trace
        frames, parents = trace.frames, capture.frame_parents
        working = np.union1d(trace.operators.lane, trace.launches.lane)
        here = (
            np.isin(frames.lane, working) if len(np.intersect1d(frames.lane, working)) else np.ones(len(frames), bool)
        )
        if not len(frames):
            return ()
        own, outer = own_time_ns(frames, parents)[here], outermost(frames, parents)[here]
        frames = frames.pick(here)
        labels: dict[str, int] = {}
        label_of = np.zeros(len(trace.names), dtype=np.int64)
        for name in np.unique(frames.name):
            label_of[name] = labels.setdefault(tell(trace.names[name]), len(labels))
        which = label_of[frames.name]
        calls = np.bincount(which, minlength=len(labels))
        owns = np.bincount(which, weights=own, minlength=len(labels))
        totals = np.bincount(which, weights=np.where(outer, frames.duration_ns, 0), minlength=len(labels))
        whole = float(owns.sum())
        shown = [n for n in range(len(labels)) if share_pct(owns[n], whole) >= self.min_share_pct]
        small = np.setdiff1d(np.arange(len(labels)), shown)
        names = list(labels)
        found = [make_row(names[n], int(calls[n]), float(owns[n]), float(totals[n]), whole) for n in shown]
        found.sort(key=lambda row: (-row.self_us, row.function))
        if len(small):
            own_sum = float(owns[small].sum())
            found.append(make_row("other", int(calls[small].sum()), own_sum, own_sum, whole))
        return tuple(found)

    def advise(self, capture: Capture, rows: Sequence[HostRow]) -> Advice:
        """The function with most own time that does not wait."""
        working = [row for row in rows if not row.waits and row.function != "other"]
        waiting = sum(row.self_pct for row in rows if row.waits)
        if not working:
            return Advice(
                look_first=f"the host waits for {waiting:.0f} % of its time",
                next_edit="the device is the bottleneck: see the table `kernels`",
            )
        top = working[0]
        return Advice(
            look_first=f"{top.function} has {top.self_pct:.1f} % of the host's time to itself, {top.calls} calls; "
            f"waiting is {waiting:.0f} %",
            next_edit="a CUDA graph launches without this Python; where one runs already, call it less often per step"
            if capture.work.on_device
            else "fewer, larger operators: see the table `operators` for the small ones",
        )

    def why_empty(self, capture: Capture) -> str:
        """No stacks."""
        return 'the trace holds no Python stacks: profile with "with_stack": true, or sample the processes with py-spy'


def tell(name: str) -> str:
    """A frame as a function: modules without their instances, built-ins without their addresses."""
    if kind := module_kind(name):
        return f"nn.Module: {kind}"
    found = BUILT_IN.match(name)
    return f"<built-in {found[1]}>" if found else shorten_frame(name)


def make_row(function: str, calls: int, own_ns: float, total_ns: float, whole_ns: float) -> HostRow:
    """One function."""
    return HostRow(
        function=function,
        calls=calls,
        self_us=own_ns / 1000,
        self_pct=share_pct(own_ns, whole_ns),
        total_us=total_ns / 1000,
        total_pct=share_pct(total_ns, whole_ns),
        waits=any(word in function.rpartition(": ")[2] for word in WAITS),
    )
