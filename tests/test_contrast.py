"""Two rounds side by side, where that means anything."""

import math

import pytest

from loop.contrast import contrast
from loop.errors import InputError
from tests.brackets import closed_round, comparison

FIRST = closed_round("R000001-aaaa", comparisons=(comparison(effect_pct=10.0, half_pct=2.0),))
SECOND = closed_round("R000002-aaaa", comparisons=(comparison(effect_pct=21.0, half_pct=2.0),))


def test_the_second_is_held_against_the_first_through_their_baseline() -> None:
    """1.21 over 1.10, and the errors of both rounds add in squares."""
    (found,) = contrast(FIRST, SECOND)

    one, other = (math.log(1.12 / 1.10), math.log(1.23 / 1.21))
    half = math.hypot(one, other)
    assert found.effect_pct == pytest.approx(10.0)
    assert found.low_pct == pytest.approx(100 * math.expm1(math.log(1.1) - half))
    assert found.high_pct == pytest.approx(100 * math.expm1(math.log(1.1) + half))


def test_what_differs_between_incomparable_rounds_is_named() -> None:
    """Machine, suite, client: a number beside another would be read as one."""
    host = SECOND.host.model_copy(update={"kernel": "9.9"})
    suite = SECOND.suite.model_copy(update={"sha256": "f" * 64})
    elsewhere = SECOND.model_copy(update={"host": host, "suite": suite, "client": "loop.client/0"})

    with pytest.raises(InputError) as refusal:
        contrast(FIRST, elsewhere)

    text = str(refusal.value)
    assert "R000001-aaaa (there) and R000002-aaaa (here) are not comparable" in text
    assert "kernel: " in text
    assert "9.9 here" in text
    assert "suite_sha256: " in text
    assert "client: loop.client/1 there, loop.client/0 here" in text


def test_a_reboot_does_not_make_rounds_incomparable() -> None:
    """It is the same machine."""
    rebooted = SECOND.model_copy(update={"host": SECOND.host.model_copy(update={"boot_id": "another"})})

    assert 1 == len(contrast(FIRST, rebooted))


def test_rounds_against_different_baselines_are_not_compared() -> None:
    """The message says how to measure them directly."""
    baseline = SECOND.baseline.model_copy(update={"sha256": "e" * 64})

    with pytest.raises(InputError, match="measures them directly"):
        contrast(FIRST, SECOND.model_copy(update={"baseline": baseline}))


def test_an_invalid_round_is_not_compared() -> None:
    """Its numbers mean nothing."""
    assert SECOND.verdict is not None
    verdict = SECOND.verdict.model_copy(update={"outcome": "invalid"})

    with pytest.raises(InputError, match="R000002-aaaa measured nothing"):
        contrast(FIRST, SECOND.model_copy(update={"verdict": verdict}))
