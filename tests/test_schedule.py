"""The plan of a round: which sessions, in which order, with which steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.errors import InputError
from loop.schedule import ORDERS, Step, extension, plan_sessions
from tests.brackets import suite, workload


@pytest.mark.parametrize(
    ("protocol", "labels"),
    [
        ("aba", ["A1", "B", "A2"]),
        ("abba", ["A1", "B1", "B2", "A2"]),
        ("ababa", ["A1", "B1", "A2", "B2", "A3"]),
    ],
)
def test_a_protocol_is_its_sessions_in_order(protocol: str, labels: list[str]) -> None:
    """Labels number an arm that has several."""
    sessions = plan_sessions(protocol, suite())

    assert labels == [session.label for session in sessions]
    assert list(protocol.upper()) == [session.arm for session in sessions]


def test_an_extension_goes_on_where_the_sessions_ended() -> None:
    """One more B and A, with the same steps, and the bracket still ends with the baseline."""
    first = plan_sessions("aba", suite())

    more = extension(first)

    assert [("B2", "B"), ("A3", "A")] == [(session.label, session.arm) for session in more]
    assert {session.steps for session in more} == {first[0].steps}


@pytest.mark.parametrize(
    ("protocol", "owners"),
    [
        ("aba", [("A1",), ("B",), ("B",)]),
        ("abba", [("A1", "A1"), ("B1", "B1"), ("B2", "B2"), ("B1", "B2")]),
        ("ababa", [("A1",), ("B1",), ("B1",), ("B2",), ("B2",)]),
    ],
)
def test_every_b_has_canaries_of_its_own_and_the_a_after_it_repeats_them(
    protocol: str, owners: list[tuple[str, ...]]
) -> None:
    """All sessions send as many."""
    assert owners == [session.canaries for session in plan_sessions(protocol, suite())]


def test_an_extension_has_canaries_of_its_own() -> None:
    """What the first B stored does not serve the second."""
    assert [("B2",), ("B2",)] == [session.canaries for session in extension(plan_sessions("aba", suite()))]


@pytest.mark.parametrize("order", ORDERS.values())
def test_the_baseline_stands_on_both_sides(order: str) -> None:
    """So that drift shows."""
    assert ("A", "A") == (order[0], order[-1])
    assert "B" in order


def test_every_session_checks_first_and_then_does_the_same() -> None:
    """Correctness before performance, and no step that only one arm has."""
    sessions = plan_sessions("ababa", suite())

    assert 1 == len({session.steps for session in sessions})
    assert Step(kind="check") == sessions[0].steps[0]
    assert ["timed", "timed"] == [step.kind for step in sessions[0].steps[1:]]


def test_passes_go_round_the_workloads() -> None:
    """A slow minute of the machine touches every workload a little."""
    steps = plan_sessions("aba", suite(workload("a", passes=3), workload("b", passes=1), workload("c", passes=2)))[0]

    assert ["check", "a-0", "b-0", "c-0", "a-1", "c-1", "a-2"] == [step.name for step in steps.steps]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_pass_of_every_workload_is_there_once(passes: list[int]) -> None:
    """With a name of its own, because it names a file."""
    workloads = [workload(f"w{number}", passes=count) for number, count in enumerate(passes)]

    names = [step.name for step in plan_sessions("aba", suite(*workloads))[0].steps]

    assert 1 + sum(passes) == len(names) == len(set(names))


def test_an_unknown_protocol_lists_the_known_ones() -> None:
    """Before anything starts."""
    with pytest.raises(InputError, match="no protocol called 'ab'; known: aba, abba, ababa"):
        plan_sessions("ab", suite())
