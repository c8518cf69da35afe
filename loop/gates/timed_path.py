"""The answers that were timed must be the baseline's answers to the same salted requests."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.matching import first_difference, prefix_match
from loop.replies import Reply
from loop.session import Session
from loop.suites import Workload

Pair = tuple[Reply, Reply]


class TimedPath(Gate):
    """Prefix bars, lengths, token counts and finish reasons, per workload, on the timed responses of every B.

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
    min_own_ratio: float = 0.5
    """Of one answer's length to the baseline's; a few may be shorter."""
    max_short_share: float = 0.02
    max_finish_difference: float = 0.02
    """Of the share of answers with one finish reason; and where A differs from itself by more, that."""
    max_usage_difference: float = 0.02
    """Of the tokens that a server counts from the token ids that it sent."""
    max_burst: float = 4.0
    """How many times as many tokens as in A, and as the acceptance of drafts explains, may come in one event."""

    def check(self, bracket: Bracket) -> GateResult:
        """The first workload that fails decides; the lowest mean is shown when all pass."""
        a, b = bracket.arm("A"), bracket.arm("B")
        lowest = 1.0
        for workload in bracket.suite.suite.workload:
            repeats = bracket.pairs(a[0], a[-1], "timed", workload.id) if len(a) > 1 else []
            answers = [bracket.pairs(a[0], session, "timed", workload.id) for session in b] if repeats else []
            if not answers or not all(answers):
                return self.uninformative(f"{workload.id} was not timed in both arms", reason="not_timed")
            for session, pairs in zip(b, answers, strict=True):
                where = workload.id if len(b) == 1 else f"{workload.id} in {session.label}"
                mean, finding = self._match(where, workload, pairs, repeats)
                finding = finding or next(self._miscounts(where, pairs, repeats, _acceptance(a[0], session)), None)
                if finding is not None:
                    return finding
                lowest = min(lowest, mean)
        return self.passed(f"every workload's timed answers match; the lowest mean is {lowest:.3f}", {"mean": lowest})

    def _match(
        self, where: str, workload: Workload, pairs: Sequence[Pair], repeats: Sequence[Pair]
    ) -> tuple[float, GateResult | None]:
        """(mean match, what is wrong with it)."""
        own = [prefix_match(x.text, y.text) for x, y in repeats]
        scores = [prefix_match(x.text, y.text) for x, y in pairs]
        sequential = workload.score_class == "sequential"
        mean_bar = min(self.sequential_mean if sequential else self.concurrent_mean, fmean(own) - self.slack)
        median_bar = min(self.sequential_median if sequential else self.concurrent_median, median(own) - self.slack)
        mean, middle = fmean(scores), median(scores)
        values = {
            "mean": mean,
            "mean_bar": mean_bar,
            "median": middle,
            "median_bar": median_bar,
            "self_match": fmean(own),
        }
        if fmean(own) < self.floor:
            text = f"{where}: the baseline repeats only {fmean(own):.3f} of its timed answers"
            return mean, self.uninformative(text, values, reason="unstable")
        if mean >= mean_bar and middle >= median_bar:
            return mean, None
        worst = sorted(zip(scores, pairs, strict=True), key=lambda item: item[0])[:10]
        return mean, self.refused(
            f"{where}: timed answers keep {mean:.3f} (bar {mean_bar:.2f}), median {middle:.3f} (bar {median_bar:.2f})",
            values,
            worst=tuple(f"{x.rid} ({score:.2f}) {first_difference(x.text, y.text)}" for score, (x, y) in worst),
        )

    def _miscounts(
        self, where: str, pairs: Sequence[Pair], repeats: Sequence[Pair], acceptance: float
    ) -> Iterator[GateResult]:
        """What is wrong with the numbers of answers whose texts match."""
        a, b = [x for x, _ in pairs], [y for _, y in pairs]
        other = next((pair for pair in pairs if pair[0].num_prompt_tokens != pair[1].num_prompt_tokens), None)
        if other is not None:
            found = f"{other[1].num_prompt_tokens} prompt tokens, {other[0].num_prompt_tokens} in A"
            yield self.refused(f"{where}: {other[0].rid} had {found}", reason="prompts_differ")
        ratio = sum(y.num_tokens or 0 for y in b) / max(1, sum(x.num_tokens or 0 for x in a))
        if not self.min_length_ratio <= ratio <= self.max_length_ratio:
            text = f"{where}: timed answers are {ratio:.2f} times as long as the baseline's"
            yield self.refused(text, {"length_ratio": ratio}, reason="length_ratio")
        short = sum((y.num_tokens or 0) < self.min_own_ratio * (x.num_tokens or 0) for x, y in pairs) / len(pairs)
        if short > self.max_short_share:
            text = f"{where}: {100 * short:.0f} % of the timed answers are less than half as long as the baseline's"
            yield self.refused(text, {"short_share": short}, reason="short_answers")
        reason, difference = _finish_difference(pairs)
        if difference > max(self.max_finish_difference, _finish_difference(repeats)[1]):
            text = f"{where}: the share of answers that end with {reason} differs by {100 * difference:.0f} %"
            yield self.refused(text, {"finish_difference": difference}, reason="finish_reason")
        overcount = _overcount(b)
        if overcount > self.max_usage_difference >= _overcount(a):
            text = f"{where}: the server's counts differ by {100 * overcount:.0f} % from the token ids it sent"
            yield self.refused(text, {"usage_difference": overcount}, reason="usage_differs")
        burst = _burst(b) / _burst(a)
        if burst > self.max_burst * acceptance:
            text = f"{where}: {burst:.1f} times as many tokens come in one event as in A"
            yield self.refused(text, {"burst": burst}, reason="coalesced")


def _acceptance(a: Session, b: Session) -> float:
    """How many times as many tokens B's drafts bring in one step as A's."""
    return max(1.0, (b.accept_length or 1.0) / (a.accept_length or 1.0))


def _finish_difference(pairs: Sequence[Pair]) -> tuple[str, float]:
    """The finish reason whose share differs most between the two sides, and by how much."""
    sides = [Counter(str(reply.finish_reason) for reply in side) for side in zip(*pairs, strict=True)]
    apart = {reason: abs(sides[0][reason] - sides[1][reason]) / len(pairs) for reason in {*sides[0], *sides[1]}}
    return max(sorted(apart.items()), key=lambda item: item[1])


def _overcount(replies: Sequence[Reply]) -> float:
    """How far the counts are from the number of token ids, as a share; 0 where no ids were sent."""
    counted = [(reply.num_tokens or 0, len(reply.output_ids)) for reply in replies if reply.output_ids]
    sent = sum(ids for _, ids in counted)
    return abs(sum(tokens for tokens, _ in counted) - sent) / sent if sent else 0.0


def _burst(replies: Sequence[Reply]) -> float:
    """Tokens in one event, on average."""
    return max(1, sum(reply.num_tokens or 0 for reply in replies)) / max(1, sum(reply.num_chunks for reply in replies))
