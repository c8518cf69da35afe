"""The score, as the seed task defines it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.compare import Comparison
from loop.score import FLOOR_SHARE, ONE_AT, ZERO_AT, Score, credit, keep_factor, score
from tests.brackets import CONCURRENT, SEQUENTIAL, comparison

SPEEDUPS = st.floats(0.2, 5.0)


def compared(sequential: float, concurrent: float, mde_pct: float = 1.0) -> list[Comparison]:
    """The comparisons of a suite with one workload of each class."""
    speedups = {
        SEQUENTIAL: sequential,
        CONCURRENT: concurrent,
        "class:sequential": sequential,
        "class:concurrent": concurrent,
        "all": (sequential * concurrent) ** 0.5,
    }
    return [comparison(scope, speedup=speedup, mde_pct=mde_pct) for scope, speedup in speedups.items()]


def scored(sequential: float, concurrent: float, *, counts: bool = True, mde_pct: float = 1.0) -> Score:
    """The score of these speedups."""
    found = score(compared(sequential, concurrent, mde_pct), counts=counts)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("speedup", "expected"), [(1.0, 0.0), (ZERO_AT, 0.0), (1.51, 0.5), (ONE_AT, 1.0), (3.0, 1.0), (0.5, 0.0)]
)
def test_credit_is_linear_between_its_anchors(speedup: float, expected: float) -> None:
    """1.02 earns nothing, 2.0 everything."""
    assert credit(speedup) == pytest.approx(expected)


def test_the_anchors_are_the_seeds() -> None:
    """Changing one changes every score in every ledger."""
    assert (1.02, 2.0, 0.30) == (ZERO_AT, ONE_AT, FLOOR_SHARE)
    assert (0.0, 1.0) == (scored(1.02, 1.02).score, scored(2.0, 2.0).score)


@given(st.floats(1.0, 5.0), st.floats(1.0, 5.0))
def test_the_better_class_cannot_carry_the_weaker_one(a: float, b: float) -> None:
    """The aggregate is the mean, at most 0.30 + 0.70 times the weaker class's credit."""
    weaker, mean = min(credit(a), credit(b)), (credit(a) + credit(b)) / 2

    assert scored(a, b).score == pytest.approx(min(mean, 0.30 + 0.70 * weaker))


def test_one_class_alone_earns_at_most_the_floor_share() -> None:
    """Infinitely fast alone is 0.30."""
    assert scored(100.0, 1.0).score == pytest.approx(0.30)


@pytest.mark.parametrize(
    ("speedup", "tolerance", "expected"),
    [(1.0, 0.02, 1.0), (0.98, 0.02, 1.0), (0.96, 0.02, 0.5), (0.94, 0.02, 0.0), (0.9, 0.02, 0.0), (0.9, 0.1, 1.0)],
)
def test_a_regression_beyond_the_tolerance_costs_up_to_everything(
    speedup: float, tolerance: float, expected: float
) -> None:
    """Linear from one to three tolerances."""
    assert keep_factor(speedup, tolerance) == pytest.approx(expected)


def test_a_regressed_class_takes_the_score_with_it() -> None:
    """Its class and its workload both count: 4 % slower is a quarter of what is left."""
    whole, regressed = scored(3.0, 1.0), scored(3.0, 0.96)

    assert regressed.regression_factor == pytest.approx(0.25)
    assert regressed.score == pytest.approx(whole.score * 0.25)
    assert 0.0 == scored(3.0, 0.94).score


def test_noise_that_the_round_cannot_tell_from_none_costs_nothing() -> None:
    """The tolerance is the round's own where that is larger."""
    assert 1.0 == scored(3.0, 0.96, mde_pct=5.0).regression_factor


def test_the_weakest_workload_counts_apart_from_its_class() -> None:
    """A class may hide a loser behind a winner; the score does not."""
    hidden = [*compared(1.5, 1.5), comparison("loser", speedup=0.9)]

    found = score(hidden, counts=True)

    assert found is not None
    assert (0.0, 0.0) == (found.regression_factor, found.score)
    assert found.capped > 0.4


@given(SPEEDUPS, SPEEDUPS)
def test_a_candidate_that_does_not_count_scores_exactly_zero(a: float, b: float) -> None:
    """Refused, identical or invalid; the numbers stay for the report."""
    found = scored(a, b, counts=False)

    assert 0.0 == found.score
    assert {"class:sequential": credit(a), "class:concurrent": credit(b)} == found.credits
    assert a == found.speedups[SEQUENTIAL]


@given(SPEEDUPS, SPEEDUPS, st.floats(0.1, 20.0))
def test_a_score_is_between_zero_and_one(a: float, b: float, mde_pct: float) -> None:
    """Whatever the speedups."""
    assert 0.0 <= scored(a, b, mde_pct=mde_pct).score <= 1.0


@given(SPEEDUPS, SPEEDUPS, st.floats(1.0, 3.0), st.floats(0.1, 20.0))
def test_a_faster_class_never_scores_less(a: float, b: float, factor: float, mde_pct: float) -> None:
    """Either of them."""
    before = scored(a, b, mde_pct=mde_pct).score

    assert before <= scored(a * factor, b, mde_pct=mde_pct).score + 1e-12
    assert before <= scored(a, b * factor, mde_pct=mde_pct).score + 1e-12


@given(SPEEDUPS, SPEEDUPS)
def test_neither_class_is_favoured(a: float, b: float) -> None:
    """The score is symmetric."""
    assert scored(a, b).score == pytest.approx(scored(b, a).score)


def test_without_comparisons_there_is_no_score() -> None:
    """None, not 0: nothing was measured."""
    assert None is score([], counts=True)
