"""Numbers only: what a difference between sessions may mean.

All inputs are natural logarithms of session values, so a difference is a relative change. Sources for the rules:
docs/method.md; research on benchmark noise shows that the session, not the request, is the unit of replication.
"""

import math
from collections.abc import Sequence
from statistics import fmean

PRIOR_PAIRS = 4
"""How many A/A pairs the prior belief about noise is worth."""


def pool_sigma(pair_differences: Sequence[float], prior_sigma: float) -> tuple[float, int]:
    """(σ of one session, degrees of freedom) from stored A/A differences and a prior.

    Each pair estimates σ² as d²/2 with one degree of freedom; the prior counts as PRIOR_PAIRS of them:
    σ² = (n0·σ0² + Σ d²/2) / (n0 + n).
    """
    seen = sum(difference * difference / 2 for difference in pair_differences)
    dof = PRIOR_PAIRS + len(pair_differences)
    return math.sqrt((PRIOR_PAIRS * prior_sigma * prior_sigma + seen) / dof), dof


def standard_error(sigma: float, num_a: int, num_b: int) -> float:
    """Of mean(B) - mean(A), every session independent with standard deviation `sigma`."""
    return sigma * math.sqrt(1 / num_a + 1 / num_b)


def t_quantile(probability: float, dof: int) -> float:
    """Of Student's t distribution."""
    from scipy.special import stdtrit  # half a second to import: only where something is judged

    return float(stdtrit(dof, probability))


def minimum_detectable(error: float, dof: int, *, power: float = 0.8, confidence: float = 0.95) -> float:
    """The effect that would be told from none with this power: (t(1-α/2) + t(power)) · SE."""
    return (t_quantile(0.5 + confidence / 2, dof) + t_quantile(power, dof)) * error


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values."""
    return math.exp(fmean(math.log(value) for value in values))


def to_pct(log_ratio: float) -> float:
    """A log ratio as a relative change in per cent."""
    return math.expm1(log_ratio) * 100
