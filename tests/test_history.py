"""What earlier rounds say about noise."""

import math
from pathlib import Path
from typing import Any

import pytest

from loop.history import Groups, noise_before, served_before
from loop.ledger import Ledger
from tests.brackets import closed_round, comparison, session, stored_round

NOW = stored_round("R000009-aaaa", created_utc="2026-02-01T00:00:00.000Z")
FAR = "2026-03-01T00:00:00.000Z"


def pair(first: float, last: float, scope: str = "all") -> Any:
    """A comparison whose first and last baseline had these values."""
    return comparison(scope, sessions={"A1": first, "B": 1.0, "A2": last})


def seen(root: Path, **fields: Any) -> Groups:
    """What one stored round with these fields tells a round of today."""
    ledger = Ledger(root)
    ledger.write(closed_round(**{"comparisons": (pair(110.0, 100.0),), **fields}))
    return noise_before(NOW, ledger)


def test_a_round_like_this_one_brings_its_baselines(tmp_path: Path) -> None:
    """As log values, by scope."""
    found = seen(tmp_path, comparisons=(pair(math.e, 1.0, "one"), pair(1.0, 1.0)))

    assert {"one": [(1.0, 0.0)], "all": [(0.0, 0.0)]} == found


def test_a_round_of_the_baseline_itself_brings_all_its_sessions(tmp_path: Path) -> None:
    """Its candidate is one more baseline."""
    same = closed_round().baseline

    assert {"all": [(0.0, 0.0, 1.0)]} == seen(tmp_path, candidate=same, comparisons=(pair(1.0, math.e),))


def test_several_rounds_bring_several_pairs(tmp_path: Path) -> None:
    """Oldest first."""
    ledger = Ledger(tmp_path)
    for number, last in enumerate([1.0, math.e], start=1):
        ledger.write(closed_round(f"R00000{number}-aaaa", comparisons=(pair(1.0, last),)))

    assert [(0.0, 0.0), (0.0, 1.0)] == noise_before(NOW, ledger)["all"]


@pytest.mark.parametrize("outcome", ["improved", "regressed", "no_change", "inconclusive"])
def test_whatever_became_of_the_candidate(tmp_path: Path, outcome: str) -> None:
    """The baselines are what counts."""
    assert ["all"] == list(seen(tmp_path, outcome=outcome))


def test_a_round_of_another_fingerprint_brings_none(tmp_path: Path) -> None:
    """Another machine, model, suite, engine or client has other noise."""
    assert {} == seen(tmp_path, fingerprint="0" * 64)


def test_an_invalid_round_brings_none_but_a_calibration_does(tmp_path: Path) -> None:
    """What a calibration saw is the noise, however much."""
    assert {} == seen(tmp_path / "candidate", outcome="invalid")
    assert ["all"] == list(seen(tmp_path / "calibration", outcome="invalid", purpose="calibration"))


def test_a_later_round_brings_none(tmp_path: Path) -> None:
    """An old round that is judged again must not know the future."""
    assert {} == seen(tmp_path, created_utc=FAR)


def test_a_round_without_a_verdict_brings_none(tmp_path: Path) -> None:
    """It failed, or runs."""
    failure = {"kind": "killed", "message": "x"}

    assert {} == seen(tmp_path, verdict=None, failure=failure)


def test_a_round_is_no_history_of_itself(tmp_path: Path) -> None:
    """Its own noise would excuse its own drift."""
    assert {} == seen(tmp_path, round_id=NOW.id)


def test_an_empty_ledger_has_no_history(tmp_path: Path) -> None:
    """And is no error."""
    assert {} == noise_before(NOW, Ledger(tmp_path))


def served(root: Path, **fields: Any) -> tuple[float, ...]:
    """What sessions of today's baseline came to in one stored round with these fields."""
    ledger = Ledger(root)
    labels = {"A1": "ours", "B": "other", "A2": "ours"}
    sessions = tuple(session(root, label, bundle_sha256=sha256) for label, sha256 in labels.items())
    baseline = NOW.baseline.model_copy(update={"sha256": "ours"})
    ledger.write(closed_round(**{"comparisons": (pair(110.0, 100.0),), "sessions": sessions, **fields}))
    return served_before(NOW.model_copy(update={"baseline": baseline}), ledger)


def test_earlier_sessions_of_the_baseline_are_known_whichever_arm_they_were(tmp_path: Path) -> None:
    """By the hash of what they served: a candidate that ships is the next baseline."""
    assert (110.0, 100.0) == served(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": "0" * 64},
        {"created_utc": FAR},
        {"outcome": "invalid"},
        {"comparisons": (pair(1.0, 1.0, "one"),)},
        {"sessions": ()},
    ],
)
def test_sessions_that_cannot_be_held_against_it_are_not(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Other conditions, later rounds, invalid ones, and those that were not compared."""
    assert () == served(tmp_path, **fields)
