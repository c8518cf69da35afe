"""A contrast: the candidates of two rounds, held against each other through the baseline they share."""

import math

from loop.compare import Comparison
from loop.errors import InputError
from loop.ledger import Round
from loop.record import Record
from loop.stats import t_quantile, to_pct


class Contrast(Record):
    """The second round's candidate against the first's in one scope; positive: the second is better."""

    scope: str
    first_pct: float
    second_pct: float
    """Each round's own effect."""
    effect_pct: float
    low_pct: float
    high_pct: float
    """95 % t interval of the difference."""


def contrast(first: Round, second: Round) -> tuple[Contrast, ...]:
    """Every scope that both rounds measured.

    Raises InputError naming what differs where the rounds ran under different terms or against another baseline, and
    where a round has nothing that was measured: incomparable numbers are not put side by side.
    """
    differing = second.terms.differing(first.terms)
    if differing:
        lines = "\n".join(f"  {line}" for line in differing)
        raise InputError(f"{first.id} (there) and {second.id} (here) are not comparable:\n{lines}")
    if first.baseline.sha256 != second.baseline.sha256:
        raise InputError(
            f"{first.id} was measured against {first.baseline.bundle} {first.baseline.sha256[:16]}, "
            f"{second.id} against {second.baseline.bundle} {second.baseline.sha256[:16]}",
            next=f"`loop run {second.candidate.bundle} --baseline {first.candidate.bundle}` measures them directly",
        )
    for round_ in (first, second):
        if round_.verdict is None or round_.verdict.outcome == "invalid" or not round_.comparisons:
            raise InputError(f"{round_.id} measured nothing that can be compared", next=f"`loop report {round_.id}`")
    others = {comparison.scope: comparison for comparison in second.comparisons}
    return tuple(_contrast(one, others[one.scope]) for one in first.comparisons if one.scope in others)


def _contrast(first: Comparison, second: Comparison) -> Contrast:
    """Errors add in squares; the smaller number of degrees of freedom is the honest one."""
    effect = math.log1p(second.effect_pct / 100) - math.log1p(first.effect_pct / 100)
    error = math.hypot(_error(first), _error(second))
    half = t_quantile(0.975, min(first.dof, second.dof)) * error
    return Contrast(
        scope=first.scope,
        first_pct=first.effect_pct,
        second_pct=second.effect_pct,
        effect_pct=to_pct(effect),
        low_pct=to_pct(effect - half),
        high_pct=to_pct(effect + half),
    )


def _error(comparison: Comparison) -> float:
    """The standard error (log ratio) behind a comparison's interval."""
    half = math.log1p(comparison.high_pct / 100) - math.log1p(comparison.effect_pct / 100)
    return half / t_quantile(0.975, comparison.dof)
