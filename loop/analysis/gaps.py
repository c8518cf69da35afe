"""Gaps: when the device had nothing to do, between which kernels, and whether the host was late."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loop.analysis.intervals import covered_ns, merge, overlap_ns
from loop.analysis.passes import Pass
from loop.analysis.trace import NONE, Ints
from loop.analysis.work import Work


@dataclass(frozen=True, slots=True)
class Window:
    """What a forward pass took on the device's clock: from its first kernel to the next pass's first.

    To its own last kernel if the scheduler then waited for requests, or nothing follows.
    """

    passed: int
    """-1: the whole trace, where passes cannot be told."""
    start_ns: int
    end_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time when no stream of the device was busy."""

    passed: int
    start_ns: int
    end_ns: int
    before: int
    """The row of the work that ended last."""
    after: int
    late_ns: int | None
    """Of the gap, before the host had launched what came after; None if the trace does not hold the launch."""


def find_windows(work: Work, passes: Sequence[Pass]) -> tuple[Window, ...]:
    """By start; passes that launched nothing have none."""
    here = _main_device(work)
    union = merge(work.start_ns[here], work.end_ns[here])
    spans: list[tuple[int, int, int]] = []
    for number in range(len(passes)) if passes else (NONE,):
        rows = work.rows(number)
        rows = rows[here[rows]]
        if len(rows):
            spans.append((int(work.start_ns[rows].min()), int(work.end_ns[rows].max()), number))
    spans.sort()
    ends = [
        max(start, following[0]) if passes[following[2]].follows_on else end
        for (start, end, _), following in pairwise(spans)
    ]
    ends += [end for _, end, _ in spans[-1:]]
    starts = np.array([start for start, _, _ in spans], dtype=np.int64)
    busy = overlap_ns(starts, np.array(ends, dtype=np.int64), union)
    return tuple(
        Window(number, start, end, int(b)) for (start, _, number), end, b in zip(spans, ends, busy, strict=True)
    )


def find_gaps(work: Work, windows: Sequence[Window]) -> tuple[Gap, ...]:
    """Every gap that begins inside a window, by start; windows' idle times are their sums."""
    rows = np.flatnonzero(_main_device(work) & (work.end_ns > work.start_ns))
    if len(rows) < 2 or not windows:
        return ()
    start, end = work.start_ns[rows], work.end_ns[rows]
    reach = np.maximum.accumulate(end)
    last = np.maximum.accumulate(np.where(end >= reach, np.arange(len(rows)), 0))
    opens = np.flatnonzero(start[1:] > reach[:-1])
    window_starts = np.array([window.start_ns for window in windows], dtype=np.int64)
    found = []
    for place in opens.tolist():
        first, beyond = int(reach[place]), int(start[place + 1])
        window = windows[max(0, int(np.searchsorted(window_starts, first, side="right")) - 1)]
        beyond = min(beyond, window.end_ns)
        if not window.start_ns <= first < beyond:
            continue
        after = int(rows[place + 1])
        launched = int(work.launched_ns[after])
        late = min(max(launched - first, 0), beyond - first) if work.on_device and launched >= 0 else None
        found.append(Gap(window.passed, first, beyond, int(rows[last[place]]), after, late))
    return tuple(found)


def busy_ns(work: Work, rows: Sequence[int]) -> int:
    """How long some of the work kept the device busy."""
    return covered_ns(work.start_ns[list(rows)], work.end_ns[list(rows)])


def _main_device(work: Work) -> Ints:
    """Which work ran on the device (on a CPU: the thread) that was busiest; copies of others' memory name others."""
    place = work.device if work.on_device else work.lane
    if not len(place):
        return np.zeros(0, dtype=bool)
    totals = np.bincount(place, weights=work.time_ns)
    return np.asarray(place == int(totals.argmax()))
