"""Numbers only: what a difference between sessions may mean, and what is made of it.

All inputs are natural logarithms of session values, so a difference is a relative change. The session, not the
request, is the unit of replication: requests of one server share its luck (docs/method.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

PRIOR_DOF = 4
"""How many degrees of freedom the prior belief about noise is worth."""
MIN_EFFECT = 0.01
"""Smaller effects are not worth the change, however certain."""
DRIFT_FLOOR = 0.02
"""Drift below this is nobody's business, unless noise is known to be far smaller."""
FUTILE_SIGMAS = 3.0
"""B this many standard deviations of a difference behind A needs no second A."""

Outcome = Literal["improved", "regressed", "no_change", "inconclusive"]


@dataclass(frozen=True)
class Estimate:
    """B against A, as log ratios; positive is better."""

    effect: float
    half: float
    """Half the width of the 95 % t interval."""
    sigma: float
    """Noise of one session."""
    dof: int
    mde: float
    """The effect that these sessions would tell from none with power 0.8."""
    drift: float
    """|first A - last A|; 0 with one A."""
    drift_limit: float

    @property
    def min_effect(self) -> float:
        """What counts as relevant: 1 %, or one σ where that is more."""
        return max(MIN_EFFECT, self.sigma)

    @property
    def drifted(self) -> bool:
        """A moved more than noise explains: the bracket proves nothing."""
        return self.drift > self.drift_limit

    @property
    def futile(self) -> bool:
        """B is so far behind that no second A can save it. Never the other way round: a win is never stopped early."""
        return self.effect < -FUTILE_SIGMAS * math.sqrt(2) * self.sigma

    @property
    def outcome(self) -> Outcome:
        """Two parts: distinguishable from nothing, and large enough to matter."""
        low, high = self.effect - self.half, self.effect + self.half
        if low > 0 and self.effect >= self.min_effect:
            return "improved"
        if high < 0 and self.effect <= -self.min_effect:
            return "regressed"
        if -self.min_effect <= low and high <= self.min_effect:
            return "no_change"
        return "inconclusive"


def estimate(a: Sequence[float], b: Sequence[float], groups: Sequence[Sequence[float]], prior_sigma: float) -> Estimate:
    """B against A from log costs (lower is better) of their sessions, in order.

    `groups` are earlier sessions that served the same thing: what differs inside a group is noise. `prior_sigma` is
    what is believed before there are any.
    """
    sigma, dof = pool_sigma(groups, prior_sigma)
    error = standard_error(sigma, len(a), len(b))
    mde = minimum_detectable(error, dof)
    return Estimate(
        effect=fmean(a) - fmean(b),
        half=t_quantile(0.975, dof) * error,
        sigma=sigma,
        dof=dof,
        mde=mde,
        drift=abs(a[-1] - a[0]),
        # Beyond 3 sigma of a difference, or beyond what matters and can be seen, whichever is less.
        drift_limit=min(3 * math.sqrt(2) * sigma, max(DRIFT_FLOOR, mde)),
    )


def pool_sigma(groups: Sequence[Sequence[float]], prior_sigma: float) -> tuple[float, int]:
    """(σ of one session, degrees of freedom) from groups of equal sessions and a prior.

    σ² = (n0·σ0² + Σ (x - mean of its group)²) / (n0 + Σ (group size - 1)); a pair brings d²/2 and one degree.
    """
    seen = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    dof = PRIOR_DOF + sum(len(group) - 1 for group in groups)
    return math.sqrt((PRIOR_DOF * prior_sigma * prior_sigma + seen) / dof), dof


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


def sessions_to_certify(effect: float, sigma: float, dof: int, *, most: int = 99) -> int | None:
    """The fewest sessions (A/B/A, A/B/A/B/A, ...) that certify `effect` with power 0.8; None beyond `most`.

    Certify: the interval's lower end above 0 and the effect relevant, so nothing below one σ can be certified.
    """
    if effect < max(MIN_EFFECT, sigma):
        return None
    for num_sessions in range(3, most + 1, 2):
        num_b = num_sessions // 2
        if minimum_detectable(standard_error(sigma, num_b + 1, num_b), dof) <= effect:
            return num_sessions
    return None
