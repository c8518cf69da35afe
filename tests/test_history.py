"""What earlier rounds say about noise."""

import math
from pathlib import Path
from typing import Any

import pytest

from loop.history import pairs_like
from loop.ledger import Ledger
from tests.brackets import closed_round, comparison, stored_round

NOW = stored_round("R000009-aaaa", created_utc="2026-02-01T00:00:00.000Z")
FAR = "2026-03-01T00:00:00.000Z"


def pair(first: float, last: float, scope: str = "all") -> Any:
    """A comparison whose first and last baseline had these values."""
    return comparison(scope, sessions={"A1": first, "B": 1.0, "A2": last})


def seen(root: Path, **fields: Any) -> dict[str, tuple[float, ...]]:
    """What one stored round with these fields tells a round of today."""
    ledger = Ledger(root)
    ledger.write(closed_round(**{"comparisons": (pair(110.0, 100.0),), **fields}))
    return pairs_like(NOW, ledger)


def test_a_round_like_this_one_brings_its_pair(tmp_path: Path) -> None:
    """As a log difference, by scope."""
    found = seen(tmp_path, comparisons=(pair(110.0, 100.0, "one"), pair(100.0, 100.0)))

    assert {"one": (pytest.approx(math.log(1.1)),), "all": (0.0,)} == found


def test_several_rounds_bring_several_pairs(tmp_path: Path) -> None:
    """Oldest first."""
    ledger = Ledger(tmp_path)
    for number, last in enumerate([100.0, 50.0], start=1):
        ledger.write(closed_round(f"R00000{number}-aaaa", comparisons=(pair(100.0, last),)))

    assert pytest.approx((0.0, math.log(2))) == pairs_like(NOW, ledger)["all"]


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
    assert {} == pairs_like(NOW, Ledger(tmp_path))
