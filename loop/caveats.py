"""A caveat: a finding that weakens a comparison, with advice. It never changes a verdict by itself."""

from math import log
from statistics import fmean

from loop.compare import OVERALL, load_metric
from loop.gates import Bracket
from loop.record import Record
from loop.server import Exit
from loop.stats import PRIOR_DOF, to_pct
from loop.wording import count

MIN_REQUESTS = 3
"""Fewer requests in a pass say little about a workload."""
SALTS_PCT = 1.0
"""Canaries have other salts in every session, and salts have few words: some begin alike by chance."""
CACHED_PCT = 5.0
"""Of its prompt tokens that B has in a cache beyond what A has, from which on it is named."""
BATCHING_PCT = 2.0
"""More throughput and a slower token, both beyond this: other batches, not a faster server."""


class Caveat(Record):
    """What was found, and what to do about it."""

    code: str
    text: str
    advice: str


def find_caveats(bracket: Bracket) -> tuple[Caveat, ...]:
    """Every caveat of a round, in a fixed order."""
    finders = (
        _uncalibrated,
        _unsettled,
        _cache_hits,
        _few_requests,
        _killed,
        _left_behind,
        _batching,
        _baseline_slower,
    )
    return tuple(caveat for find in finders for caveat in find(bracket))


def _uncalibrated(bracket: Bracket) -> list[Caveat]:
    """The study: where noise is four times what was believed, an empty history lets 28 of 1000 nulls ship."""
    overall = bracket.comparisons[-1] if bracket.comparisons else None
    if overall is None or overall.dof > PRIOR_DOF or bracket.purpose == "calibration":
        return []
    return [
        Caveat(
            code="uncalibrated",
            text=f"no earlier session tells the noise of this machine: {overall.sigma_pct:.1f} % is a belief",
            advice="`loop calibrate` measures it; where it is larger, noise passes for a win",
        )
    ]


def _unsettled(bracket: Bracket) -> list[Caveat]:
    labels = [s.label for s in bracket.sessions if s.warmup_tokens_per_s and not s.warmup_settled]
    if not labels:
        return []
    agree = bracket.suite.suite.warmup.agree_pct
    return [
        Caveat(
            code="warmup_unsettled",
            text=f"warm-up did not settle within {agree:.0f} % in {', '.join(labels)}",
            advice="raise [warmup] max_blocks of the suite, or find what else runs on this machine",
        )
    ]


def _cache_hits(bracket: Bracket) -> list[Caveat]:
    hits = {s.label: sum(m.num_cached_tokens for m in s.measured("timed")) for s in bracket.sessions}
    if len({len(s.measured("timed")) for s in bracket.sessions}) > 1:
        return []  # sessions that were cut short have other counts anyway
    num_prompt = max((sum(m.num_prompt_tokens for m in s.measured("timed")) for s in bracket.sessions), default=0)
    if not hits or 100 * (max(hits.values()) - min(hits.values())) <= SALTS_PCT * num_prompt:
        return []
    listed = ", ".join(f"{label} {count}" for label, count in hits.items())
    more_pct = 100 * (_cached_share(bracket, "B") - _cached_share(bracket, "A"))
    b_hits = f"; B took {more_pct:.0f} % more of its prompts from a cache than A" if more_pct > CACHED_PCT else ""
    return [
        Caveat(
            code="cache_hits_differ",
            text=f"cached prompt tokens differ between sessions: {listed}{b_hits}",
            advice="salted prompts should hit nothing: look at what the candidate does to the prefix cache",
        )
    ]


def _cached_share(bracket: Bracket, arm: str) -> float:
    """Of the timed prompt tokens of one arm, those that came from a cache."""
    measured = [m for session in bracket.arm(arm) for m in session.measured("timed")]
    num_prompt = sum(m.num_prompt_tokens for m in measured)
    return sum(m.num_cached_tokens for m in measured) / num_prompt if num_prompt else 0.0


def _baseline_slower(bracket: Bracket) -> list[Caveat]:
    """Against a baseline that is slower than it was before, anything wins."""
    overall = next((found for found in bracket.comparisons if found.scope == OVERALL), None)
    if overall is None or not bracket.earlier:
        return []
    now = [value for label, value in overall.sessions.items() if label.startswith("A")]
    slower_pct = to_pct(fmean(map(log, now)) - fmean(map(log, bracket.earlier)))
    if slower_pct <= overall.drift_limit_pct:
        return []
    return [
        Caveat(
            code="baseline_slower",
            text=f"the baseline is {slower_pct:.1f} % slower than in {count(len(bracket.earlier), 'earlier session')}; "
            f"noise explains {overall.drift_limit_pct:.1f} %",
            advice="find out why before you believe a win: another machine state, or an engine that was changed",
        )
    ]


def _few_requests(bracket: Bracket) -> list[Caveat]:
    few = [w.id for w in bracket.suite.suite.workload if len(bracket.suite.traffic[w.id]) * w.passes < MIN_REQUESTS]
    return [
        Caveat(code="few_requests", text=f"{name} sends fewer than {MIN_REQUESTS} requests", advice="add passes")
        for name in few
    ]


def _killed(bracket: Bracket) -> list[Caveat]:
    labels = [s.label for s in bracket.sessions if s.exit.killed]
    if not labels:
        return []
    return [
        Caveat(
            code="killed_at_stop",
            text=f"the server did not end on SIGINT and was killed in {', '.join(labels)}",
            advice="read the end of its server.log: a restart in production would hang as long",
        )
    ]


def _what_was_left(end: Exit) -> str:
    return f"{'; '.join(end.survivors)} (killed since)" if end.survivors else "its port open"


def _left_behind(bracket: Bracket) -> list[Caveat]:
    return [
        Caveat(
            code="left_behind",
            text=f"session {s.label} left {_what_was_left(s.exit)}",
            advice="a server that survives its stop contaminates the next session: find who starts it",
        )
        for s in bracket.sessions
        if s.exit.left_something
    ]


def _batching(bracket: Bracket) -> list[Caveat]:
    """A win of a workload of fixed work that every single token pays for."""
    tpot = load_metric("tpot")
    effects = {comparison.scope: comparison.effect_pct for comparison in bracket.comparisons}
    found = []
    for workload in bracket.suite.suite.workload:
        gain_pct = effects.get(workload.id, 0.0)
        if workload.kind not in ("concurrent", "offline") or gain_pct <= BATCHING_PCT:
            continue
        logs: dict[str, list[float]] = {"A": [], "B": []}
        for session in bracket.sessions:
            value = tpot.value(list(bracket.replies(session, "timed", workload.id)))
            if value:
                logs[session.arm].append(log(value))
        slower_pct = to_pct(fmean(logs["B"]) - fmean(logs["A"])) if all(logs.values()) else 0.0
        if slower_pct > BATCHING_PCT:
            found.append(
                Caveat(
                    code="batching_changed",
                    text=f"{workload.id}: throughput {gain_pct:+.1f} %, but each token takes {slower_pct:+.1f} %",
                    advice="it runs larger batches, not a faster model: decide whether users may wait longer",
                )
            )
    return found
