"""Arithmetic of intervals on one clock. Times are whole nanoseconds, so that sums are exact."""

import numpy as np

from loop.analysis.trace import Ints


def merge(start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """The union: disjoint intervals in order, those that touch joined, empty ones dropped."""
    kept = end_ns > start_ns
    start_ns, end_ns = start_ns[kept], end_ns[kept]
    if not len(start_ns):
        return start_ns, end_ns
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    reach = np.maximum.accumulate(end_ns)
    opens = np.flatnonzero(np.concatenate(([True], start_ns[1:] > reach[:-1])))
    closes = np.concatenate((opens[1:] - 1, [len(start_ns) - 1]))
    return start_ns[opens], reach[closes]


def covered_ns(start_ns: Ints, end_ns: Ints) -> int:
    """How long at least one of them lasts."""
    first, last = merge(start_ns, end_ns)
    return int((last - first).sum())


def overlap_ns(start_ns: Ints, end_ns: Ints, union: tuple[Ints, Ints]) -> Ints:
    """For each interval how much of it a union of disjoint ones covers."""
    first, last = union
    if not len(first):
        return np.zeros(len(start_ns), dtype=np.int64)
    total = np.concatenate(([0], np.cumsum(last - first)))

    def before(times_ns: Ints) -> Ints:
        """How much of the union lies before each time."""
        row = np.searchsorted(first, times_ns, side="right")
        inside = np.minimum(times_ns, last[np.maximum(row - 1, 0)]) - first[np.maximum(row - 1, 0)]
        return np.where(row > 0, total[np.maximum(row - 1, 0)] + inside, 0)

    return before(end_ns) - before(start_ns)


def hidden_ns(start_ns: Ints, end_ns: Ints, stream: Ints, device: Ints) -> Ints:
    """For each kernel how long another stream of its device was busy meanwhile."""
    hidden = np.zeros(len(start_ns), dtype=np.int64)
    for each in np.unique(device):
        here = device == each
        streams = np.unique(stream[here])
        if len(streams) == 1:
            continue
        for one in streams:
            mine, others = here & (stream == one), here & (stream != one)
            hidden[mine] = overlap_ns(start_ns[mine], end_ns[mine], merge(start_ns[others], end_ns[others]))
    return hidden
