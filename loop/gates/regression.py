"""No class and no single workload may pay for the others' gain."""

import math
from typing import ClassVar

from loop.compare import OVERALL, Comparison
from loop.gates import Bracket, Gate, GateResult
from loop.stats import t_quantile


class Regression(Gate):
    """Refuses what is slower than noise explains in a class or in the weakest workload.

    Source: the seed's regression gates; tau = max(2 %, what the round can detect), collapse at 3 tau. Below a collapse
    a scope must be certainly slower at 95 % for all scopes together (Bonferroni): among nine scopes that did not change
    one lies outside its own 95 % interval in a third of all rounds.
    """

    name: ClassVar[str] = "regression"

    tolerance_pct: float = 2.0
    collapse_factor: float = 3.0

    def check(self, bracket: Bracket) -> GateResult:
        """The weakest scope decides."""
        scopes = [comparison for comparison in bracket.comparisons if comparison.scope != OVERALL]
        if not scopes:
            return self.uninformative("nothing was compared", reason="not_timed")
        for comparison in scopes:
            tau = max(self.tolerance_pct, comparison.mde_pct)
            certain = comparison.effect_pct <= -self.tolerance_pct and _high_among(len(scopes), comparison) < 0
            if certain or comparison.effect_pct <= -self.collapse_factor * tau:
                return self.refused(
                    f"{comparison.scope} is {-comparison.effect_pct:.1f} % slower "
                    f"({comparison.low_pct:+.1f} to {comparison.high_pct:+.1f} %)",
                    {"effect_pct": comparison.effect_pct, "tau_pct": tau},
                )
        weakest = min(scopes, key=lambda comparison: comparison.effect_pct)
        return self.passed(
            f"the weakest is {weakest.scope} at {weakest.effect_pct:+.1f} %", {"effect_pct": weakest.effect_pct}
        )


def _high_among(num_scopes: int, comparison: Comparison) -> float:
    """The upper end of the comparison's interval (log ratio) when it is one of so many that must hold together."""
    effect = math.log1p(comparison.effect_pct / 100)
    half = math.log1p(comparison.high_pct / 100) - effect
    return effect + half * t_quantile(1 - 0.025 / num_scopes, comparison.dof) / t_quantile(0.975, comparison.dof)
