"""A caveat: a finding that weakens a comparison, with advice. It never changes a verdict by itself."""

from loop.gates import Bracket
from loop.record import Record
from loop.server import Exit

MIN_REQUESTS = 3
"""Fewer requests in a pass say little about a workload."""


class Caveat(Record):
    """What was found, and what to do about it."""

    code: str
    text: str
    advice: str


def find_caveats(bracket: Bracket) -> tuple[Caveat, ...]:
    """Every caveat of a round, in a fixed order."""
    return (*_unsettled(bracket), *_cache_hits(bracket), *_few_requests(bracket), *_left_behind(bracket))


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
    if not hits or max(hits.values()) == min(hits.values()):
        return []
    listed = ", ".join(f"{label} {count}" for label, count in hits.items())
    return [
        Caveat(
            code="cache_hits_differ",
            text=f"cached prompt tokens differ between sessions: {listed}",
            advice="salted prompts should hit nothing: look at what the candidate does to the prefix cache",
        )
    ]


def _few_requests(bracket: Bracket) -> list[Caveat]:
    few = [w.id for w in bracket.suite.suite.workload if len(bracket.suite.traffic[w.id]) * w.passes < MIN_REQUESTS]
    return [
        Caveat(code="few_requests", text=f"{name} sends fewer than {MIN_REQUESTS} requests", advice="add passes")
        for name in few
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
        if not s.exit.clean
    ]
