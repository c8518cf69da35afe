"""A prediction: how long a round will take, from the stored sessions most like its own, else from constants."""

from collections.abc import Sequence
from statistics import median

from loop.ledger import Ledger, Round
from loop.plan import Plan
from loop.record import Record
from loop.wording import count

START_S, STOP_S, OVERHEAD_S = 38.0, 3.0, 1.0
"""Before this workspace has measured anything: SGLang with a tiny model on two cores."""
TOKENS_PER_S_PER_STREAM = 120.0
NUM_WARMUP_BLOCKS = 3


class Prediction(Record):
    """Seconds of a round that has not begun."""

    phases_s: dict[str, float]
    """Seconds of each phase of one session."""
    num_sessions: int
    num_rounds: int
    """Stored rounds behind it."""
    basis: str
    """What it was learnt from, in words."""

    @property
    def total_s(self) -> float:
        """Of the whole round."""
        return self.num_sessions * sum(self.phases_s.values())


def predict(plan: Plan) -> Prediction:
    """The median of each phase over the stored sessions of rounds with the plan's fingerprint.

    Else of rounds with its engine, model and suite on this machine. What none of them came to is guessed.
    """
    closed = [round_ for round_ in Ledger(plan.workspace.ledger).read_all() if round_.status == "closed"]
    same = [round_ for round_ in closed if round_.fingerprint == plan.fingerprint]
    alike = [round_ for round_ in closed if _work_of(round_) == _planned_work(plan)]
    for rounds, likeness in ((same, "like this one"), (alike, "with this engine, model and suite on this machine")):
        told = [round_ for round_ in rounds if any(session.crash is None for session in round_.sessions)]
        if told:
            return _prediction(plan, told, f"from {count(len(told), 'round')} {likeness}")
    return _prediction(plan, (), "a guess: no such round is stored")


def _prediction(plan: Plan, rounds: Sequence[Round], basis: str) -> Prediction:
    return Prediction(
        phases_s={**_guessed_s(plan), **_learnt_s(rounds)},
        num_sessions=len(plan.sessions),
        num_rounds=len(rounds),
        basis=basis,
    )


def _work_of(round_: Round) -> tuple[str, ...]:
    return round_.engine.name, round_.model.sha256, round_.suite.sha256, round_.host.machine


def _planned_work(plan: Plan) -> tuple[str, ...]:
    return plan.engine.name, plan.model_sha256, plan.suite.sha256, plan.host.machine


def _learnt_s(rounds: Sequence[Round]) -> dict[str, float]:
    """Phase → median seconds over the sessions that did not crash; one whose timing was skipped lacks that phase."""
    seen: dict[str, list[float]] = {}
    for round_ in rounds:
        for session in round_.sessions:
            for phase, seconds in session.phases_s.items() if session.crash is None else ():
                seen.setdefault(phase, []).append(seconds)
    return {phase: median(seconds) for phase, seconds in seen.items()}


def _guessed_s(plan: Plan) -> dict[str, float]:
    """Phase → seconds at a modest token rate."""
    suite = plan.suite
    widest = max(workload.concurrency for workload in suite.suite.workload)
    block = sum(prompt.max_new_tokens for prompts in suite.traffic.values() for prompt in prompts) / widest
    timed = sum(
        sum(prompt.max_new_tokens for prompt in suite.traffic[workload.id]) * workload.passes / workload.concurrency
        for workload in suite.suite.workload
    )
    check = sum(prompt.max_new_tokens for prompt in suite.check)
    return {
        "launch": START_S,
        "warmup": NUM_WARMUP_BLOCKS * block / TOKENS_PER_S_PER_STREAM,
        "check": check / TOKENS_PER_S_PER_STREAM,
        "timed": timed / TOKENS_PER_S_PER_STREAM,
        "stop": STOP_S,
        "overhead": OVERHEAD_S,
    }
