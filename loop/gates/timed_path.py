"""The answers that were timed must be the baseline's answers to the same salted requests."""

from statistics import fmean, median
from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.matching import first_difference, prefix_match


class TimedPath(Gate):
    """Mean and median prefix bars and a completion-length ratio, per workload, on the timed responses.

    It catches a server that answers checks faithfully and benchmarks carelessly. Bars follow the baseline's match with
    itself, because batch composition alone changes greedy output under load; below `floor` the baseline judges nobody.
    """

    name: ClassVar[str] = "timed_path"

    sequential_mean: float = 0.95
    sequential_median: float = 0.98
    concurrent_mean: float = 0.85
    concurrent_median: float = 0.90
    slack: float = 0.03
    """How far below the baseline's own match the bar lies, where that is lower than the absolute bar."""
    floor: float = 0.70
    min_length_ratio: float = 0.95
    max_length_ratio: float = 1.05

    def check(self, bracket: Bracket) -> GateResult:
        """The first workload that fails decides; the lowest mean is shown when all pass."""
        a, b = bracket.arm("A"), bracket.arm("B")
        lowest = 1.0
        for workload in bracket.suite.suite.workload:
            pairs = bracket.pairs(a[0], b[0], "timed", workload.id) if a and b else []
            repeats = bracket.pairs(a[0], a[-1], "timed", workload.id) if len(a) > 1 else []
            if not pairs or not repeats:
                return self.uninformative(f"{workload.id} was not timed in both arms", reason="not_timed")
            own = [prefix_match(x.text, y.text) for x, y in repeats]
            scores = [prefix_match(x.text, y.text) for x, y in pairs]
            sequential = workload.score_class == "sequential"
            mean_bar = min(self.sequential_mean if sequential else self.concurrent_mean, fmean(own) - self.slack)
            median_bar = min(self.sequential_median if sequential else self.concurrent_median, median(own) - self.slack)
            length_ratio = sum(y.num_tokens or 0 for _, y in pairs) / max(1, sum(x.num_tokens or 0 for x, _ in pairs))
            values = {
                "mean": fmean(scores),
                "mean_bar": mean_bar,
                "median": median(scores),
                "median_bar": median_bar,
                "self_match": fmean(own),
                "length_ratio": length_ratio,
            }
            if fmean(own) < self.floor:
                return self.uninformative(
                    f"{workload.id}: the baseline repeats only {fmean(own):.3f} of its timed answers",
                    values,
                    reason="unstable",
                )
            if fmean(scores) < mean_bar or median(scores) < median_bar:
                worst = sorted(zip(scores, pairs, strict=True), key=lambda item: item[0])[:10]
                return self.refused(
                    f"{workload.id}: timed answers keep {fmean(scores):.3f} (bar {mean_bar:.2f}), "
                    f"median {median(scores):.3f} (bar {median_bar:.2f})",
                    values,
                    worst=tuple(f"{x.rid} ({score:.2f}) {first_difference(x.text, y.text)}" for score, (x, y) in worst),
                )
            if not self.min_length_ratio <= length_ratio <= self.max_length_ratio:
                return self.refused(
                    f"{workload.id}: timed answers are {length_ratio:.2f} times as long as the baseline's",
                    values,
                    reason="length_ratio",
                )
            lowest = min(lowest, fmean(scores))
        return self.passed(f"every workload's timed answers match; the lowest mean is {lowest:.3f}", {"mean": lowest})
