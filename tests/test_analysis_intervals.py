"""Arithmetic of intervals, against references that are too slow to ship and too simple to be wrong."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loop.analysis.intervals import covered_ns, hidden_ns, merge, overlap_ns
from loop.analysis.nesting import find_innermost, find_parents, outermost, own_time_ns
from loop.analysis.signatures import distance
from loop.analysis.trace import Ints, Spans

SPANS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 3), st.integers(0, 1)), min_size=0, max_size=25
)
"""(start, duration, stream, device)."""


def columns(spans: list[tuple[int, int, int, int]]) -> tuple[Ints, Ints, Ints, Ints]:
    """Start, end, stream and device."""
    start, length, stream, device = np.array(spans, dtype=np.int64).reshape(-1, 4).T
    return start, start + length, stream, device


@given(SPANS)
def test_the_union_covers_each_instant_once(spans: list[tuple[int, int, int, int]]) -> None:
    """Counted instant by instant."""
    start, end, *_ = columns(spans)
    instants = {t for s, e in zip(start, end, strict=True) for t in range(s, e)}
    first, last = merge(start, end)

    assert len(instants) == covered_ns(start, end)
    assert all(a < b for a, b in zip(last[:-1], first[1:], strict=True))


@given(SPANS)
def test_hidden_time_equals_that_of_a_quadratic_reference(spans: list[tuple[int, int, int, int]]) -> None:
    """An instant of a kernel is hidden if another stream of its device has one then."""
    start, end, stream, device = columns(spans)
    n = range(len(start))
    expected = [
        sum(
            any(device[j] == device[i] and stream[j] != stream[i] and start[j] <= t < end[j] for j in n)
            for t in range(start[i], end[i])
        )
        for i in n
    ]

    assert expected == hidden_ns(start, end, stream, device).tolist()


def test_overlap_by_hand() -> None:
    """Two streams: 0-10 and 6-16, then 20-24 alone."""
    start, end = np.array([0, 6, 20]), np.array([10, 16, 24])

    assert [4, 4, 0] == hidden_ns(start, end, np.array([1, 2, 1]), np.zeros(3, dtype=np.int64)).tolist()
    assert 20 == covered_ns(start, end)
    assert [2] == overlap_ns(np.array([9]), np.array([11]), (np.array([0, 10]), np.array([10, 11]))).tolist()


def spans_of(rows: list[tuple[int, int]]) -> Spans:
    """Spans of one lane, sorted as a trace has them."""
    start, length = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    end = start + length
    order = np.lexsort((-end, start))
    nothing = np.zeros(len(start), dtype=np.int64)
    return Spans(nothing, start[order], end[order], nothing, nothing, nothing, nothing, nothing)


@given(st.integers(1, 4), st.integers(2, 4))
def test_own_times_of_a_tree_sum_to_its_root(depth: int, width: int) -> None:
    """Every level splits its parent in equal parts."""
    size = width**depth * 10
    rows = [
        (part * (size // width**level), size // width**level)
        for level in range(depth + 1)
        for part in range(width**level)
    ]
    spans = spans_of(rows)
    parents = find_parents(spans)

    assert size == own_time_ns(spans, parents).sum()
    assert 1 == (parents < 0).sum()
    assert 1 == outermost(spans, parents).sum()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=12), st.integers(0, 60))
def test_the_innermost_span_is_the_one_a_search_finds(rows: list[tuple[int, int]], at: int) -> None:
    """Of properly nested spans the last that began among those that hold the instant."""
    nested = []
    for start, length in rows:  # kept only if it nests in all kept so far
        if all(start + length <= s or start >= s + w or (s <= start and start + length <= s + w) for s, w in nested):
            nested.append((start, length))
    spans = spans_of(nested)
    found = int(find_innermost(spans, find_parents(spans), np.array([0]), np.array([at]))[0])
    holding = [i for i in range(len(spans)) if spans.start_ns[i] <= at <= spans.end_ns[i]]
    strictly = [i for i in holding if at < spans.end_ns[i]]

    assert found in holding if holding else found == -1
    assert not strictly or found == strictly[-1]


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_distance_is_a_distance(one: list[str], other: list[str]) -> None:
    """Zero for equals only, symmetric, at most 1."""
    a, b = ([(letter, letter) for letter in letters] for letters in (one, other))

    assert (one == other) == (distance(tuple(a), tuple(b)) == 0)
    assert distance(tuple(a), tuple(b)) == distance(tuple(b), tuple(a)) <= 1
