"""What a difference between sessions may mean, in numbers."""

import math
from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr

from loop.stats import (
    PRIOR_DOF,
    estimate,
    geometric_mean,
    minimum_detectable,
    pool_sigma,
    sessions_to_certify,
    standard_error,
    t_quantile,
    to_pct,
)

SIGMAS = st.floats(0.001, 0.2)
GROUPS = st.lists(st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=5), max_size=10)
VALUES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=10)


@given(SIGMAS)
def test_without_history_the_noise_is_what_was_believed(prior: float) -> None:
    """With as many degrees of freedom as the belief is worth."""
    sigma, dof = pool_sigma((), prior)

    assert sigma == pytest.approx(prior)
    assert dof == PRIOR_DOF


@given(GROUPS, SIGMAS)
def test_every_session_beyond_the_first_of_a_group_is_a_degree_of_freedom(
    groups: list[list[float]], prior: float
) -> None:
    """And the noise lies between the belief and what was seen."""
    sigma, dof = pool_sigma(groups, prior)

    squares = sum((len(group) - 1) * variance(group) for group in groups)
    free = sum(len(group) - 1 for group in groups)
    seen = math.sqrt(squares / free) if free else prior
    assert dof == PRIOR_DOF + free
    assert min(prior, seen) * (1 - 1e-9) <= sigma <= max(prior, seen) * (1 + 1e-9)


@given(GROUPS, SIGMAS, st.floats(1.01, 3.0))
def test_larger_differences_mean_more_noise(groups: list[list[float]], prior: float, factor: float) -> None:
    """Never less."""
    larger = [[value * factor for value in group] for group in groups]

    assert pool_sigma(groups, prior)[0] <= pool_sigma(larger, prior)[0] * (1 + 1e-9)


@given(GROUPS, SIGMAS, st.floats(-1.0, 1.0))
def test_only_differences_inside_a_group_are_noise(groups: list[list[float]], prior: float, shift: float) -> None:
    """What another bundle served is as slow as it is."""
    moved = [[value + shift * index for value in group] for index, group in enumerate(groups)]

    assert pool_sigma(moved, prior)[0] == pytest.approx(pool_sigma(groups, prior)[0], rel=1e-6)


def test_a_history_as_large_as_the_prior_counts_as_much() -> None:
    """Four pairs of 2 % beside a belief of 1 %: the variances are averaged."""
    pairs = [(0.0, 0.02 * math.sqrt(2))] * PRIOR_DOF

    assert pool_sigma(pairs, 0.01)[0] == pytest.approx(math.sqrt((0.01**2 + 0.02**2) / 2))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=4), st.lists(st.floats(-1, 1), min_size=1, max_size=3), SIGMAS)
def test_swapping_the_arms_turns_the_estimate_around(a: list[float], b: list[float], prior: float) -> None:
    """The effect changes its sign, and nothing else but the drift, which is A's."""
    forth, back = estimate(a, b, (), prior), estimate(b, a, (), prior)

    assert forth.effect == pytest.approx(-back.effect)
    assert forth.half == pytest.approx(back.half)
    assert {forth.outcome, back.outcome} in ({"improved", "regressed"}, {"no_change"}, {"inconclusive"})


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=4), SIGMAS, st.floats(-3, 3))
def test_the_unit_of_a_metric_does_not_matter(a: list[float], prior: float, shift: float) -> None:
    """Seconds or milliseconds: a factor moves every logarithm alike."""
    plain = estimate(a, [0.1], (), prior)
    scaled = estimate([value + shift for value in a], [0.1 + shift], (), prior)

    assert scaled.effect == pytest.approx(plain.effect, abs=1e-9)
    assert scaled.drift == pytest.approx(plain.drift, abs=1e-9)


def test_what_lies_below_noise_cannot_be_certified() -> None:
    """However many sessions; what lies far above it needs three."""
    assert sessions_to_certify(0.01, 0.02, 14) is None
    assert sessions_to_certify(0.10, 0.01, 14) == 3
    needed = [sessions_to_certify(effect, 0.01, 14) or 99 for effect in (0.01, 0.02, 0.03, 0.05)]
    assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize(
    ("probability", "dof", "expected"),
    [(0.975, 4, 2.7764451), (0.975, 10, 2.2281389), (0.975, 1, 12.7062047), (0.8, 4, 0.9409647), (0.5, 7, 0.0)],
)
def test_quantiles_are_those_of_the_tables(probability: float, dof: int, expected: float) -> None:
    """Two-sided 95 %, and the power."""
    assert t_quantile(probability, dof) == pytest.approx(expected, abs=1e-6)


@given(st.floats(0.01, 0.99), st.integers(1, 60))
def test_a_quantile_inverts_the_distribution(probability: float, dof: int) -> None:
    """Student's t."""
    assert stdtr(dof, t_quantile(probability, dof)) == pytest.approx(probability, abs=1e-8)


def test_quantiles_agree_with_scipys_distribution() -> None:
    """The slow way that starts in half a second, over all that a round can need."""
    from scipy.stats import t

    for dof in range(1, 40):
        assert t_quantile(0.975, dof) == pytest.approx(float(t.ppf(0.975, dof)), rel=1e-9)


@given(SIGMAS, st.integers(1, 5), st.integers(1, 5))
def test_more_sessions_leave_less_error(sigma: float, num_a: int, num_b: int) -> None:
    """Of either arm; and swapping the arms changes nothing."""
    error = standard_error(sigma, num_a, num_b)

    assert error > standard_error(sigma, num_a + 1, num_b)
    assert error > standard_error(sigma, num_a, num_b + 1)
    assert error == pytest.approx(standard_error(sigma, num_b, num_a))


def test_one_b_between_two_as_is_half_as_much_again_in_variance() -> None:
    """σ²(1/2 + 1)."""
    assert standard_error(0.01, 2, 1) == pytest.approx(0.01 * math.sqrt(1.5))


@given(st.floats(1e-4, 0.1), st.integers(1, 40), st.floats(0.5, 0.95))
def test_what_can_be_detected_grows_with_error_and_power_and_falls_with_history(
    error: float, dof: int, power: float
) -> None:
    """Monotone in each."""
    mde = minimum_detectable(error, dof, power=power)

    assert mde < minimum_detectable(error * 1.1, dof, power=power)
    assert mde < minimum_detectable(error, dof, power=power + 0.02)
    assert mde > minimum_detectable(error, dof + 1, power=power)
    assert mde > t_quantile(0.975, dof) * error * 0.999


@given(VALUES, st.floats(0.01, 100.0))
def test_a_geometric_mean_scales_and_lies_within(values: list[float], factor: float) -> None:
    """As a mean must."""
    mean = geometric_mean(values)

    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean([value * factor for value in values]) == pytest.approx(mean * factor)


@given(VALUES)
def test_a_geometric_mean_of_inverses_is_its_inverse(values: list[float]) -> None:
    """So that speed and time give the same ranking."""
    assert geometric_mean([1 / value for value in values]) == pytest.approx(1 / geometric_mean(values))


@pytest.mark.parametrize(("log_ratio", "pct"), [(0.0, 0.0), (math.log(1.1), 10.0), (math.log(0.5), -50.0)])
def test_a_log_ratio_is_a_relative_change(log_ratio: float, pct: float) -> None:
    """Exactly, not only where it is small."""
    assert to_pct(log_ratio) == pytest.approx(pct)
