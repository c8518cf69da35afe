"""Comparisons: B against A and A against itself, from replies on disk."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loop.compare import OVERALL, Comparison, compare, equal_sessions
from loop.metrics.throughput import Throughput
from loop.session import Session
from tests.brackets import comparison, replies, session, suite, timed_session, workload

ARMS = ("A1", "B", "A2")
Values = Mapping[str, Mapping[str, Sequence[float]]]
MS = st.floats(1.0, 1e5)
PAIR = st.fixed_dictionaries(
    {"one": st.lists(MS, min_size=1, max_size=3), "four": st.lists(MS, min_size=1, max_size=3)}
)
ROUND = st.fixed_dictionaries(dict.fromkeys(ARMS, PAIR))
some = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def compared(
    root: Path,
    values: Values,
    *,
    prior_pct: float = 1.0,
    history: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> dict[str, Comparison]:
    """Scope → comparison of sessions whose passes took these milliseconds."""
    sessions = [timed_session(root, label, measured) for label, measured in values.items()]
    found = compare(suite(), sessions, root, history=history or {}, prior_sigma_pct=prior_pct)
    return {item.scope: item for item in found}


def flat(**milliseconds: float) -> Values:
    """The same milliseconds for both workloads of a session."""
    return {label: {"one": [value], "four": [value]} for label, value in milliseconds.items()}


def log_effect(item: Comparison) -> float:
    """The effect as a log ratio."""
    return math.log1p(item.effect_pct / 100)


def test_every_workload_every_class_and_all_are_compared(tmp_path: Path) -> None:
    """In that order."""
    assert ["one", "four", "class:concurrent", "class:sequential", OVERALL] == list(
        compared(tmp_path, flat(A1=100, B=100, A2=100))
    )


def test_known_numbers(tmp_path: Path) -> None:
    """B takes half the time of both As: 100 % faster, and the interval is t(0.975, 4) σ √1.5 wide."""
    item = compared(tmp_path, flat(A1=100, B=50, A2=100))[OVERALL]

    half = 2.7764451 * 0.01 * math.sqrt(1.5)
    assert item.effect_pct == pytest.approx(100.0)
    assert item.low_pct == pytest.approx(100 * (2 * math.exp(-half) - 1))
    assert item.high_pct == pytest.approx(100 * (2 * math.exp(half) - 1))
    assert pytest.approx((1.0, 0.0)) == (item.sigma_pct, item.drift_pct)
    assert item.speedup == pytest.approx(2.0)
    assert "improved" == item.outcome


@some
@given(st.fixed_dictionaries({"A1": PAIR, "B": PAIR}))
def test_swapping_the_arms_flips_every_effect(tmp_path: Path, values: Values) -> None:
    """Neither arm is favoured."""
    there = compared(tmp_path, values)
    back = compared(tmp_path, {"A1": values["B"], "B": values["A1"]})

    for scope, item in there.items():
        assert log_effect(item) == pytest.approx(-log_effect(back[scope]), abs=1e-9)
        assert item.speedup == pytest.approx(1 / back[scope].speedup)
        assert math.log1p(item.low_pct / 100) == pytest.approx(-math.log1p(back[scope].high_pct / 100), abs=1e-9)


@some
@given(ROUND, st.floats(0.1, 10.0))
def test_a_machine_that_is_slower_throughout_changes_nothing(tmp_path: Path, values: Values, factor: float) -> None:
    """Only ratios count; times are whole nanoseconds, so almost nothing."""
    scaled = {
        label: {name: [value * factor for value in passes] for name, passes in measured.items()}
        for label, measured in values.items()
    }
    before, after = compared(tmp_path, values), compared(tmp_path, scaled)

    for scope, item in before.items():
        assert item.effect_pct == pytest.approx(after[scope].effect_pct, rel=1e-4, abs=1e-3)
        assert item.speedup == pytest.approx(after[scope].speedup, rel=1e-4)
        assert item.drift_pct == pytest.approx(after[scope].drift_pct, rel=1e-4, abs=1e-3)


@some
@given(ROUND)
def test_an_interval_holds_its_effect_and_every_outcome_fits_it(tmp_path: Path, values: Values) -> None:
    """Nothing is improved whose interval reaches below zero."""
    for item in compared(tmp_path, values).values():
        assert item.low_pct <= item.effect_pct <= item.high_pct
        assert (item.outcome == "improved") <= (item.low_pct > 0)
        assert (item.outcome == "regressed") <= (item.high_pct < 0)


def test_where_more_is_better_more_is_positive(tmp_path: Path) -> None:
    """Offline throughput: B delivers the same tokens in half the time."""
    offline = suite(workload("bulk", "offline"))
    sessions = [timed_session(tmp_path, label, {"bulk": [ms]}) for label, ms in (("A1", 100), ("B", 50), ("A2", 100))]

    found = compare(offline, sessions, tmp_path, history={}, prior_sigma_pct=1.0)

    bulk, score_class, overall = found
    assert ("throughput", "tokens/s", "higher") == (bulk.metric, bulk.unit, bulk.better)
    assert [300.0, 600.0, 300.0] == [pytest.approx(value) for value in bulk.sessions.values()]
    assert ("class:concurrent", OVERALL) == (score_class.scope, overall.scope)
    for item in found:
        assert item.effect_pct == pytest.approx(100.0)
        assert item.speedup == pytest.approx(2.0)


def test_classes_weigh_the_same_however_many_workloads_they_have(tmp_path: Path) -> None:
    """Two sequential workloads that stayed the same do not outvote a concurrent one that is four times as fast."""
    three = suite(workload("a"), workload("b"), workload("c", "concurrent", concurrency=4))
    slow, fast = {"a": [100.0], "b": [100.0], "c": [400.0]}, {"a": [100.0], "b": [100.0], "c": [100.0]}
    sessions = [timed_session(tmp_path, label, fast if label == "B" else slow) for label in ARMS]

    found = {c.scope: c for c in compare(three, sessions, tmp_path, history={}, prior_sigma_pct=1.0)}

    assert found["class:sequential"].speedup == pytest.approx(1.0)
    assert found["class:concurrent"].speedup == pytest.approx(4.0)
    assert found[OVERALL].speedup == pytest.approx(2.0)
    assert found[OVERALL].effect_pct == pytest.approx(100.0)


def test_a_session_is_the_median_of_its_passes(tmp_path: Path) -> None:
    """One bad pass does not move it; the speedup pools the passes of all As."""
    item = compared(
        tmp_path,
        {
            "A1": {"one": [100, 101, 900], "four": [1]},
            "B": {"one": [50, 51, 52], "four": [1]},
            "A2": {"one": [102, 103, 104], "four": [1]},
        },
    )["one"]

    assert {"A1": 101.0, "B": 51.0, "A2": 103.0} == item.sessions
    assert item.speedup == pytest.approx(102.5 / 51)


def test_a_baseline_that_moved_is_flagged(tmp_path: Path) -> None:
    """Beyond three sigma of a difference, or what matters and can be seen, whichever is less."""
    still = compared(tmp_path, flat(A1=100, B=100, A2=101))[OVERALL]
    moved = compared(tmp_path, flat(A1=100, B=100, A2=110))[OVERALL]

    assert (False, True) == (still.drifted, moved.drifted)
    assert moved.drift_pct == pytest.approx(10.0)
    assert moved.drift_limit_pct == pytest.approx(100 * math.expm1(3 * math.sqrt(2) * 0.01), rel=0.2)


def test_history_sharpens_and_widens_the_interval(tmp_path: Path) -> None:
    """Of the scope that it belongs to, and of no other."""
    values = flat(A1=100, B=100, A2=100)
    plain = compared(tmp_path, values)
    quiet = compared(tmp_path, values, history={"one": [(0.0, 0.0)] * 20})
    noisy = compared(tmp_path, values, history={"one": [(0.0, 0.1)] * 20})

    assert quiet["one"].sigma_pct < plain["one"].sigma_pct < noisy["one"].sigma_pct
    assert quiet["one"].high_pct < plain["one"].high_pct < noisy["one"].high_pct
    assert (24, 4) == (noisy["one"].dof, noisy["four"].dof)
    assert plain["four"] == noisy["four"]


def test_five_sessions_count_as_five(tmp_path: Path) -> None:
    """Of ABABA every session is used, and the interval is narrower for it."""
    three = compared(tmp_path, flat(A1=100, B=90, A2=100))[OVERALL]
    five = compared(tmp_path, flat(A1=100, B1=90, A2=104, B2=80, A3=100))[OVERALL]

    mean = (2 * math.log(100) + math.log(104)) / 3 - (math.log(90) + math.log(80)) / 2
    assert ["A1", "B1", "A2", "B2", "A3"] == list(five.sessions)
    assert log_effect(five) == pytest.approx(mean)
    width = math.log1p(five.high_pct / 100) - math.log1p(five.low_pct / 100)
    assert width == pytest.approx(
        (math.log1p(three.high_pct / 100) - math.log1p(three.low_pct / 100)) * math.sqrt((1 / 3 + 1 / 2) / (1 / 2 + 1))
    )
    assert 0.0 == five.drift_pct


def untimed(root: Path, label: str) -> Session:
    """A session that was stopped after its check."""
    return session(root, label, check=replies("check"))


def test_without_values_there_is_no_comparison(tmp_path: Path) -> None:
    """A session that was not timed, an arm that is missing, a workload whose requests all failed before a token."""
    full = flat(A1=100, B=100)
    a, b = (timed_session(tmp_path, label, values) for label, values in full.items())
    dead = [item.model_copy(update={"last_ns": None, "failure": "connect"}) for item in replies("one-0")]
    failed = session(tmp_path, "B", timed={"one": [dead], "four": [replies("four-0")]})

    def of(*sessions: Session) -> tuple[Comparison, ...]:
        return compare(suite(), sessions, tmp_path, history={}, prior_sigma_pct=1.0)

    assert () == of(a, untimed(tmp_path, "B"), a.model_copy(update={"label": "A2"}))
    assert () == of(a)
    assert () == of(b)
    assert () == of()
    assert () == of(a, failed)


def test_equal_sessions_are_those_of_one_arm() -> None:
    """An arm of one session says nothing about noise; where both arms serve the same, all are one group."""
    sessions = {"A1": 1.0, "B1": math.e, "A2": 1.0, "B2": math.e, "A3": 1.0}
    items = [comparison("one", sessions=sessions), comparison("two", sessions={"A1": 1.0, "B": 1.0})]

    assert {"one": [(0.0, 0.0, 0.0), (1.0, 1.0)], "two": []} == equal_sessions(items, identical=False)
    assert {"one": [(0.0, 1.0, 0.0, 1.0, 0.0)], "two": [(0.0, 0.0)]} == equal_sessions(items, identical=True)


def test_a_hopeless_candidate_is_known_after_one_baseline(tmp_path: Path) -> None:
    """Three standard deviations of a difference behind; a win is never called early."""
    assert compared(tmp_path, flat(A1=100, B=105))[OVERALL].futile
    assert not compared(tmp_path, flat(A1=100, B=104))[OVERALL].futile
    assert not compared(tmp_path, flat(A1=100, B=50))[OVERALL].futile


@pytest.mark.parametrize(
    ("effect_pct", "half_pct", "sigma_pct", "outcome"),
    [
        (5.0, 1.0, 0.5, "improved"),
        (5.0, 6.0, 0.5, "inconclusive"),
        (0.8, 0.1, 0.5, "no_change"),
        (1.5, 0.1, 2.0, "no_change"),
        (2.5, 0.1, 2.0, "improved"),
        (0.0, 0.9, 0.5, "no_change"),
        (0.0, 1.1, 0.5, "inconclusive"),
        (0.0, 1.1, 2.0, "no_change"),
        (-5.0, 1.0, 0.5, "regressed"),
        (-5.0, 6.0, 0.5, "inconclusive"),
    ],
)
def test_an_outcome_needs_certainty_and_relevance(
    effect_pct: float, half_pct: float, sigma_pct: float, outcome: str
) -> None:
    """Relevant is 1 %, or one sigma where that is more."""
    item = comparison(effect_pct=effect_pct, half_pct=half_pct, sigma_pct=sigma_pct)

    assert outcome == item.outcome


# metrics


def test_throughput_counts_the_time_of_failed_requests_and_not_their_tokens() -> None:
    """A request that failed at the end took the server's time."""
    good, bad = replies("r", ("a", "b"), e2e_ms=100.0)
    late = bad.model_copy(update={"failure": "reset", "last_ns": 200_000_000})

    assert (10 / 0.2,) == Throughput().samples([good, late])
    assert () == Throughput().samples([])
