"""A verdict: the only place that decides. A pure function of a round's bracket."""

from collections.abc import Iterable, Sequence
from typing import Literal

from loop import gates, plugins
from loop.caveats import Caveat, find_caveats
from loop.compare import OVERALL, Comparison
from loop.disturbances import find_disturbances
from loop.environment import changes
from loop.errors import SuiteError
from loop.gates import Bracket, Gate, GateResult
from loop.record import Record, parse
from loop.score import Score, score

Outcome = Literal["improved", "regressed", "no_change", "inconclusive", "invalid"]
LETTERS: dict[str, str] = {"improved": "+", "regressed": "-", "no_change": "=", "inconclusive": "?", "invalid": "x"}
CRASHES: dict[str, str] = {"start": "server_start_failed", "flush": "flush_refused"}
"""Stage of a candidate's crash → reason code; at any other stage it is `crash_under_load`."""


class Verdict(Record):
    """What a round says about its candidate."""

    outcome: Outcome
    reason: str
    """A code: `measured`, a gate's reason, `crash_under_load`, `drift`, `identical`, ..."""
    refused_by: tuple[str, ...]
    """Gates that refused the candidate; the refusal is final for its content hash."""
    text: str
    """One sentence with the numbers."""


class Judgement(Record):
    """Gates, caveats, score and verdict of one round."""

    gates: tuple[GateResult, ...]
    caveats: tuple[Caveat, ...]
    score: Score | None
    verdict: Verdict


def load_gates(settings: dict[str, dict[str, object]]) -> tuple[Gate, ...]:
    """Every gate with the suite's settings; raises before anything starts if a name or a setting is unknown."""
    known = plugins.available(gates)
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise SuiteError(
            f"[gates.{unknown[0]}] is no gate; known: {', '.join(known)}{plugins.closest(unknown[0], known)}"
        )
    return tuple(
        parse(settings.get(name, {}), plugins.load(gates, name, Gate), SuiteError, where=f"[gates.{name}]")
        for name in known
    )


def check_correctness(bracket: Bracket) -> tuple[GateResult, ...]:
    """The gates that need no timing, as soon as B's correctness step is done."""
    chosen = [gate for gate in load_gates(bracket.suite.suite.gates) if not gate.needs_timing]
    return tuple(gate.check(bracket) for gate in chosen)


def judge(bracket: Bracket) -> Judgement:
    """The whole judgement of what was recorded."""
    crashed = any(session.crash for session in bracket.sessions)
    results = () if crashed else tuple(gate.check(bracket) for gate in _askable(bracket))
    verdict = decide(bracket, results)
    identical = bracket.candidate.sha256 == bracket.baseline.sha256
    counts = not (crashed or identical or verdict.refused_by or verdict.outcome == "invalid")
    return Judgement(
        gates=results,
        caveats=(*find_caveats(bracket), *find_disturbances(bracket.sessions)),
        score=score(bracket.comparisons, counts=counts),
        verdict=verdict,
    )


def _askable(bracket: Bracket) -> Iterable[Gate]:
    """All gates; with one A only those that need no timing, because the others hold A against itself."""
    chosen = load_gates(bracket.suite.suite.gates)
    return chosen if len(bracket.arm("A")) > 1 else [gate for gate in chosen if not gate.needs_timing]


def decide(bracket: Bracket, results: Sequence[GateResult]) -> Verdict:
    """The first rule that speaks decides; the last one always does."""
    return next(verdict for rule in RULES if (verdict := rule(bracket, results)))


def _environment_changed(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    for session in bracket.sessions:
        found = changes(bracket.environment, session.environment)
        for field, (before, now) in found.items():
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            text = f"before {session.label}, {field} had changed from {before} to {now}{more}"
            return _verdict("invalid", "environment_changed", text)
    return None


def _unfit_baseline(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    for session in bracket.arm("A"):
        if session.crash:
            return _verdict("invalid", "baseline_crashed", f"the baseline's {session.label}: {session.crash.message}")
    return None


def _crashed_candidate(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    for session in bracket.arm("B"):
        if session.crash:
            reason = CRASHES.get(session.crash.stage, "crash_under_load")
            return _verdict("regressed", reason, f"the candidate's {session.label}: {session.crash.message}")
    return None


def _uninformative(_: Bracket, results: Sequence[GateResult]) -> Verdict | None:
    # Where the candidate failed its check, nothing was timed: what only timing could say does not count.
    refused = any(result.outcome == "refused" for result in results)
    for result in results:
        if result.outcome == "uninformative" and not (refused and result.reason == "not_timed"):
            return _verdict("invalid", result.reason, f"{result.gate}: {result.text}")
    return None


def _refused(_: Bracket, results: Sequence[GateResult]) -> Verdict | None:
    refusals = [result for result in results if result.outcome == "refused"]
    named = [result for result in refusals if result.gate != "regression"]
    if not named:
        return None
    first = next((result for result in named if result.gate != "canary"), named[0])  # others say more of what is wrong
    names = tuple(result.gate for result in refusals)
    outcome: Outcome = "no_change" if first.reason == "no_effect" else "regressed"
    return _verdict(outcome, first.reason, f"{first.gate}: {first.text}", refused_by=names)


def _not_compared(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    return None if bracket.comparisons else _verdict("invalid", "not_timed", "nothing was compared")


def _futile(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    identical = bracket.candidate.sha256 == bracket.baseline.sha256
    if identical or len(bracket.arm("A")) != 1 or not _overall(bracket).futile:
        return None
    return _verdict("regressed", "futile", f"stopped before a second A: {_numbers(_overall(bracket))}")


def _drifted(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    overall = _overall(bracket)
    if not overall.drifted:
        return None
    moved = f"the baseline moved by {overall.drift_pct:.1f} % between its sessions"
    return _verdict("invalid", "drift", f"{moved}; noise explains {overall.drift_limit_pct:.1f} %")


def _identical(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    if bracket.purpose == "calibration" or bracket.candidate.sha256 != bracket.baseline.sha256:
        return None
    return _verdict("no_change", "identical", f"the candidate is the baseline: {_numbers(_overall(bracket))}")


def _regressed(bracket: Bracket, results: Sequence[GateResult]) -> Verdict | None:
    refusal = next((result for result in results if result.outcome == "refused"), None)  # only `regression` is left
    if refusal is None:
        return None
    # Slower as a whole is a measurement; faster as a whole at somebody's expense is a refusal.
    names = () if _overall(bracket).outcome == "regressed" else (refusal.gate,)
    return _verdict("regressed", "regression", f"{refusal.gate}: {refusal.text}", refused_by=names)


def _measured(bracket: Bracket, _: Sequence[GateResult]) -> Verdict | None:
    overall = _overall(bracket)
    return _verdict(overall.outcome, "measured", _numbers(overall))


RULES = (
    _environment_changed,
    _unfit_baseline,
    _crashed_candidate,
    _uninformative,
    _refused,
    _not_compared,
    _futile,
    _drifted,
    _identical,
    _regressed,
    _measured,
)
"""In this order: who cannot judge, who cannot be judged, who is refused, and only then the numbers."""


def _overall(bracket: Bracket) -> Comparison:
    return next(comparison for comparison in bracket.comparisons if comparison.scope == OVERALL)


def _verdict(outcome: Outcome, reason: str, text: str, *, refused_by: tuple[str, ...] = ()) -> Verdict:
    return Verdict(outcome=outcome, reason=reason, text=text, refused_by=refused_by)


def _numbers(overall: Comparison) -> str:
    """`B is 3.1 % faster (95 % interval +1.8 to +4.4 %), A drifted 0.4 %, noise 0.5 %`."""
    direction = "faster" if overall.effect_pct >= 0 else "slower"
    return (
        f"B is {abs(overall.effect_pct):.1f} % {direction} (95 % interval {overall.low_pct:+.1f} to "
        f"{overall.high_pct:+.1f} %); A drifted {overall.drift_pct:.1f} %, noise of a session {overall.sigma_pct:.1f} %"
    )
