"""The candidate must give the baseline's greedy answers, one request at a time."""

from statistics import fmean
from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.matching import first_difference, prefix_match


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
        """Compare B with the first A; the last A with the first, once it is there."""
        a, b = bracket.arm("A"), bracket.arm("B")
        pairs = bracket.pairs(a[0], b[0], "check") if a and b else []
        if not pairs:
            return self.uninformative("no correctness answers of both arms", reason="no_answers")
        scores = [prefix_match(x.text, y.text) for x, y in pairs]
        repeats = bracket.pairs(a[0], a[-1], "check") if len(a) > 1 else []
        itself = fmean(prefix_match(x.text, y.text) for x, y in repeats) if repeats else 1.0
        exact = bracket.candidate.content.numerics == "exact"
        bar = max(self.min_mean, itself - self.exact_slack) if exact else self.min_mean
        mean = fmean(scores)
        values = {
            "mean": mean,
            "bar": bar,
            "self_match": itself,
            "share_equal": sum(score == 1 for score in scores) / len(scores),
        }
        text = f"{mean:.3f} of the baseline's answers kept (bar {bar:.2f}; the baseline keeps {itself:.3f} of its own)"
        if itself < self.min_mean:
            return self.uninformative(f"the baseline does not repeat itself: {itself:.3f}", values, reason="unstable")
        if mean < bar:
            order = sorted(range(len(pairs)), key=lambda index: scores[index])
            worst = tuple(
                f"{pairs[i][0].rid} ({scores[i]:.2f}) {first_difference(pairs[i][0].text, pairs[i][1].text)}"
                for i in order[:10]
            )
            return self.refused(text, values, worst=worst)
        return self.passed(text, values)
