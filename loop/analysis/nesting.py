"""What encloses what: the tree that spans of one thread form."""

import numpy as np
from numpy.typing import NDArray

from loop.analysis.trace import NONE, Ints, Spans


def find_parents(spans: Spans) -> Ints:
    """For each span the smallest one of its lane that it lies in, as a row number; -1 at the top."""
    parents = np.full(len(spans), NONE, dtype=np.int64)
    open_: list[int] = []
    current = NONE
    ends = spans.end_ns.tolist()
    for row, (lane, start) in enumerate(zip(spans.lane.tolist(), spans.start_ns.tolist(), strict=True)):
        if lane != current:
            open_.clear()
            current = lane
        while open_ and ends[open_[-1]] <= start:
            open_.pop()
        if open_:
            parents[row] = open_[-1]
        open_.append(row)
    return parents


def find_innermost(spans: Spans, parents: Ints, lanes: Ints, times_ns: Ints) -> Ints:
    """For each (lane, time) the smallest span around it, as a row number; -1 where there is none."""
    found = np.full(len(times_ns), NONE, dtype=np.int64)
    for lane in np.unique(lanes):
        first, beyond = np.searchsorted(spans.lane, [lane, lane + 1])
        asked = np.flatnonzero(lanes == lane)
        if first == beyond or not len(asked):
            continue
        rows = first + np.searchsorted(spans.start_ns[first:beyond], times_ns[asked], side="right") - 1
        rows = np.where(rows < first, NONE, rows)
        while (over := (rows >= 0) & (spans.end_ns[rows] < times_ns[asked])).any():
            rows[over] = parents[rows[over]]
        found[asked] = rows
    return found


def own_time_ns(spans: Spans, parents: Ints) -> Ints:
    """The time of each span that none inside it covers."""
    own = spans.duration_ns.copy()
    inside = parents >= 0
    np.subtract.at(own, parents[inside], spans.duration_ns[inside])
    return np.maximum(own, 0)  # a child may outlast its parent by the rounding of a nanosecond


def outermost(spans: Spans, parents: Ints) -> NDArray[np.bool_]:
    """Whether no span of the same name encloses it: what recursion must not count twice."""
    outer = np.ones(len(spans), dtype=bool)
    rows = np.arange(len(spans))
    above = parents.copy()
    while len(rows):
        inside = above >= 0
        rows, above = rows[inside], above[inside]
        same = spans.name[rows] == spans.name[above]
        outer[rows[same]] = False
        rows, above = rows[~same], parents[above[~same]]
    return outer
