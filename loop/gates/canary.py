"""Canaries must be answered as the A after B answers them, and take no longer than what B may have seen before."""

from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.matching import first_difference, prefix_match
from loop.replies import Reply
from loop.session import Session
from loop.suites import Workload
from loop.wording import count

Pair = tuple[Reply, Reply]


class Canary(Gate):
    """Asks whether answers were computed. When B sent its canaries, nobody had answered them.

    The bars are `timed_path`'s less its slack: a canary is asked once of each arm, so A cannot be held against itself.
    Where A does not repeat the workload's other answers, the bars fall by what that does to so few: two standard
    errors.
    A server that remembers answers is slow only where it has to compute: that shows beside the other requests.
    """

    name: ClassVar[str] = "canary"

    sequential_mean: float = 0.95
    sequential_median: float = 0.98
    concurrent_mean: float = 0.85
    concurrent_median: float = 0.90
    slack: float = 0.03
    max_ratio: float = 1.5
    """How much more than in A a canary may take, as a share of what the requests of its shape take."""
    max_excess_ms: float = 20.0
    """And how much longer than in A, beside those: a share of a short request says little."""

    def check(self, bracket: Bracket) -> GateResult:
        """Every B against the A after it; the first workload that fails decides."""
        num_answers, lowest, slowest = 0, 1.0, 0.0
        for b in bracket.arm("B"):
            a = bracket.after(b)
            if a is None:
                continue
            for workload in bracket.suite.suite.workload:
                pairs = [pair for pair in bracket.pairs(a, b, "timed", workload.id) if _counts(pair)]
                if not pairs:
                    continue
                mean, wrong = self._answers(bracket, workload, b, pairs)
                ratio, slow = self._pace(bracket, workload, b)
                refusal = wrong or slow
                if refusal is not None:
                    return refusal
                num_answers, lowest, slowest = num_answers + len(pairs), min(lowest, mean), max(slowest, ratio)
        if not num_answers:
            return self.passed("no canaries were sent")
        values = {"mean": lowest, "pace": slowest}
        return self.passed(f"{count(num_answers, 'canary answer')} computed; the lowest mean is {lowest:.3f}", values)

    def _answers(
        self, bracket: Bracket, workload: Workload, b: Session, pairs: Sequence[Pair]
    ) -> tuple[float, GateResult | None]:
        """(mean match, the refusal if it is too low)."""
        scores = [prefix_match(x.text, y.text) for x, y in pairs]
        mean_bar, median_bar = self._bars(bracket, workload, len(pairs))
        mean, middle = fmean(scores), median(scores)
        if mean >= mean_bar and middle >= median_bar:
            return mean, None
        worst = sorted(zip(scores, pairs, strict=True), key=lambda item: item[0])[:10]
        return mean, self.refused(
            f"{workload.id} in {b.label}: canary answers keep {mean:.3f} (bar {mean_bar:.2f}), median {middle:.3f} "
            f"(bar {median_bar:.2f})",
            {"mean": mean, "mean_bar": mean_bar, "median": middle, "median_bar": median_bar},
            worst=tuple(f"{x.rid} ({score:.2f}) {first_difference(x.text, y.text)}" for score, (x, y) in worst),
        )

    def _bars(self, bracket: Bracket, workload: Workload, num_answers: int) -> tuple[float, float]:
        """(for the mean, for the median) of so many answers."""
        a = bracket.arm("A")
        own = [prefix_match(x.text, y.text) for x, y in bracket.pairs(a[0], a[-1], "timed", workload.id)]
        own = own if len(a) > 1 and own else [1.0]
        chance = 2 * pstdev(own) / num_answers**0.5
        sequential = workload.score_class == "sequential"
        mean_bar = min(self.sequential_mean if sequential else self.concurrent_mean, fmean(own))
        median_bar = min(self.sequential_median if sequential else self.concurrent_median, median(own))
        return mean_bar - self.slack - chance, median_bar - self.slack - chance

    def _pace(self, bracket: Bracket, workload: Workload, b: Session) -> tuple[float, GateResult | None]:
        """(how much longer canaries take than others in B as in A, the refusal if that is too much)."""
        times = {"A": _times(bracket, workload, bracket.arm("A")), "B": _times(bracket, workload, [b])}
        if not all(times.values()):
            return 0.0, None
        ratios = {arm: median(canary / other for canary, other in seen) for arm, seen in times.items()}
        excess = {arm: median(canary - other for canary, other in seen) for arm, seen in times.items()}
        # A canary that is early in A's queue is faster than others there: that is no reason why it should be in B's.
        ratio, more_ms = ratios["B"] / max(1.0, ratios["A"]), excess["B"] - max(0.0, excess["A"])
        if ratio <= self.max_ratio or more_ms <= self.max_excess_ms:
            return ratio, None
        return ratio, self.refused(
            f"{workload.id} in {b.label}: a prompt that nobody has seen takes {ratios['B']:.1f} times as long as "
            f"others of its shape, {ratios['A']:.1f} times in A: the other answers were remembered",
            {"ratio": ratio, "excess_ms": more_ms},
            reason="canary_slow",
        )


def _counts(pair: Pair) -> bool:
    """Whether both are answers to a canary: a failure is for `success` to refuse."""
    return pair[0].is_canary and pair[0].failure is None and pair[1].failure is None


def _times(bracket: Bracket, workload: Workload, sessions: Sequence[Session]) -> list[tuple[float, float]]:
    """(milliseconds of a canary, of the requests of its shape in the same session), for every canary."""
    found = []
    for session in sessions:
        replies = [r for r in bracket.replies(session, "timed", workload.id) if r.sent_to_last_ms and not r.failure]
        others = [reply for reply in replies if not reply.is_canary]
        for canary in (reply for reply in replies if reply.is_canary and others):
            nearest = min(_distance(canary, other) for other in others)
            alike = [other.sent_to_last_ms or 0.0 for other in others if _distance(canary, other) == nearest]
            found.append((canary.sent_to_last_ms or 0.0, median(alike)))
    return found


def _distance(a: Reply, b: Reply) -> tuple[int, int]:
    """How far apart their shapes are; a chat template may add a token more to one prompt than to another."""
    return abs((a.num_tokens or 0) - (b.num_tokens or 0)), abs((a.num_prompt_tokens or 0) - (b.num_prompt_tokens or 0))
