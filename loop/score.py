"""The score of a round, as the task in the seeds defines it.

Per workload: pooled A median over B median. Per class: the geometric mean, mapped linearly to credit between a
live-zero anchor and a cap. The aggregate cannot exceed 0.30 + 0.70 x the weaker class's credit, and collapses for real
regressions of a class or of the weakest workload.
"""

from collections.abc import Sequence

from loop.compare import OVERALL, Comparison
from loop.record import Record

ZERO_AT = 1.02
"""Parity and no-op relaunches earn exactly nothing."""
ONE_AT = 2.0
FLOOR_SHARE = 0.30
"""What the better class alone can earn at most."""
TOLERANCE = 0.02
"""A slowdown this small, or the round's MDE if larger, is replay noise; at three times it the score is gone."""


class Score(Record):
    """The score and how it came about."""

    speedups: dict[str, float]
    """Scope (workload or class) → speedup."""
    credits: dict[str, float]
    """Class → credit in [0, 1]."""
    capped: float
    regression_factor: float
    score: float
    """In [0, 1]; 0 for any gate refused, and for a candidate that is the baseline."""


def score(comparisons: Sequence[Comparison], *, counts: bool) -> Score | None:
    """The score of these comparisons, or None without any. `counts` is False where a gate or identity zeroes it."""
    scopes = [comparison for comparison in comparisons if comparison.scope != OVERALL]
    if not scopes:
        return None
    earned = {c.scope: credit(c.speedup) for c in scopes if c.scope.startswith("class:")}
    mean = sum(earned.values()) / len(earned)
    capped = min(mean, FLOOR_SHARE + (1 - FLOOR_SHARE) * min(earned.values()))
    kept = {c.scope: keep_factor(c.speedup, max(TOLERANCE, c.mde_pct / 100)) for c in scopes}
    factor = min(value for scope, value in kept.items() if scope not in earned)  # the weakest workload
    for name in earned:
        factor *= kept[name]
    return Score(
        speedups={c.scope: c.speedup for c in scopes},
        credits=earned,
        capped=capped,
        regression_factor=factor,
        score=capped * factor if counts else 0.0,
    )


def credit(speedup: float) -> float:
    """Linear from 0 at the live-zero anchor to 1 at the cap."""
    return min(1.0, max(0.0, (speedup - ZERO_AT) / (ONE_AT - ZERO_AT)))


def keep_factor(speedup: float, tolerance: float) -> float:
    """1 down to `1 - tolerance`, 0 from `1 - 3 tolerance` on, linear between."""
    return min(1.0, max(0.0, (speedup - (1 - 3 * tolerance)) / (2 * tolerance)))
