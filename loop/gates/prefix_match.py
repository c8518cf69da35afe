"""The candidate must give the baseline's greedy answers, one request at a time."""

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

from loop.gates import Bracket, Gate, GateResult
from loop.matching import first_difference, prefix_match
from loop.replies import Reply

Pair = tuple[Reply, Reply]
LABELS = {"visible": "visible", "heldback": "held-back"}


class PrefixMatch(Gate):
    """Mean whitespace-token prefix match at temperature 0 and concurrency 1, with the baseline's own beside it.

    Source of 0.95: the seed task. A baseline that does not repeat itself that well cannot judge anybody.
    """

    name: ClassVar[str] = "prefix_match"
    needs_timing: ClassVar[bool] = False

    min_mean: float = 0.95
    """The bar for the mean over all prompts."""
    exact_slack: float = 0.02
    """A bundle declared `numerics = "exact"` may fall this far behind the baseline's match with itself."""

    def check(self, bracket: Bracket) -> GateResult:
        """Compare every B with the first A; the last A with the first, once it is there. The worst finding decides."""
        a, b = bracket.arm("A"), bracket.arm("B")
        repeats = bracket.pairs(a[0], a[-1], "check") if len(a) > 1 else []
        answers = [bracket.pairs(a[0], session, "check") for session in b] if a else []
        if not answers or not all(answers):
            return self.uninformative("no correctness answers of both arms", reason="no_answers")
        exact = bracket.candidate.content.numerics == "exact"
        findings = [self._judge(pairs, repeats, exact=exact) for pairs in answers]
        return max(findings, key=lambda finding: ("passed", "refused", "uninformative").index(finding.outcome))

    def _judge(self, pairs: Sequence[Pair], repeats: Sequence[Pair], *, exact: bool) -> GateResult:
        """One B. Visible and held-back answers must each reach the bar: who knows the visible ones knows no others."""
        parts = {
            name: found
            for name, held in (("visible", False), ("heldback", True))
            if (found := self._part(pairs, repeats, held=held, exact=exact)) is not None
        }
        scores = [prefix_match(x.text, y.text) for x, y in pairs]
        own = [prefix_match(x.text, y.text) for x, y in repeats] or [1.0]
        values = {
            "mean": fmean(scores),
            "bar": max(part.bar for part in parts.values()),
            "self_match": fmean(own),
            "share_equal": sum(score == 1 for score in scores) / len(scores),
        }
        for name, part in parts.items() if len(parts) > 1 else ():
            values |= {f"{name}_mean": part.mean, f"{name}_bar": part.bar, f"{name}_self_match": part.itself}
        text = "; ".join(part.text("" if len(parts) == 1 else f"{LABELS[name]} ") for name, part in parts.items())
        unstable = next((part for part in parts.values() if part.itself < self.min_mean), None)
        if unstable is not None:
            return self.uninformative(
                f"the baseline does not repeat itself: {unstable.itself:.3f}", values, reason="unstable"
            )
        if all(part.mean >= part.bar for part in parts.values()):
            return self.passed(text, values)
        order = sorted(range(len(pairs)), key=lambda index: scores[index])
        worst = tuple(
            f"{pairs[i][0].rid} ({scores[i]:.2f}) {first_difference(pairs[i][0].text, pairs[i][1].text)}"
            for i in order[:10]
        )
        return self.refused(text, values, worst=worst)

    def _part(self, pairs: Sequence[Pair], repeats: Sequence[Pair], *, held: bool, exact: bool) -> "Part | None":
        """What there is of visible or of held-back answers."""
        scores = [prefix_match(x.text, y.text) for x, y in pairs if x.is_heldback == held]
        if not scores:
            return None
        itself = fmean([prefix_match(x.text, y.text) for x, y in repeats if x.is_heldback == held] or [1.0])
        bar = max(self.min_mean, itself - self.exact_slack) if exact else self.min_mean
        return Part(mean=fmean(scores), bar=bar, itself=itself)


class Part(NamedTuple):
    """The answers to visible or to held-back prompts."""

    mean: float
    bar: float
    itself: float
    """The baseline's match with itself."""

    def text(self, which: str) -> str:
        """With the numbers."""
        return (
            f"{self.mean:.3f} of the baseline's {which}answers kept (bar {self.bar:.2f}; the baseline keeps "
            f"{self.itself:.3f} of its own)"
        )
