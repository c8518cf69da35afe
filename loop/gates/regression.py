"""No class and no single workload may pay for the others' gain."""

from typing import ClassVar

from loop.compare import OVERALL
from loop.gates import Bracket, Gate, GateResult


class Regression(Gate):
    """Refuses what is slower than noise explains in a class or in the weakest workload.

    Source: the seed's regression gates; tau = max(2 %, what the round can detect), collapse at 3 tau.
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
            certain = comparison.high_pct < 0 and comparison.effect_pct <= -self.tolerance_pct
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
