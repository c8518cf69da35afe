"""One round, top to bottom. Start reading here.

    plan ─ sessions ─ comparisons ─ gates, caveats ─ verdict ─ ledger ─ report

Everything before the sessions is validation; everything after them is a pure function of what was recorded.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path

from loop import engines, plugins
from loop.compare import Comparison, compare
from loop.engines import Engine
from loop.gates import Bracket
from loop.history import pairs_like
from loop.host import end_processes, marked_processes, read_revision
from loop.judge import Judgement, check_correctness, judge
from loop.ledger import EngineRef, Ledger, ModelRef, Round, SuiteRef, now_utc
from loop.plan import Plan
from loop.recording import Recording, close_killed, commitment
from loop.report import write_report
from loop.session import Bench, Session, run_session
from loop.suites import LoadedSuite, load_measured_suite
from loop.watch import Watcher
from loop.workspace import Workspace


def run_round(plan: Plan, watcher: Watcher, *, argv: Sequence[str] = ()) -> Round:
    """Measure the plan's sessions, judge them, keep everything. Returns the closed round."""
    ledger = Ledger(plan.workspace.ledger)
    with ledger.locked():
        _end_leftovers(ledger, watcher)
        secret = secrets.token_hex(32)
        with Recording(ledger, _open(plan, ledger, secret, argv), secret) as recording:
            bench = _bench(plan, recording)

            def correct(session: Session) -> bool:
                """Correctness before performance: a refused candidate is not timed, nor is the A after it."""
                return not _refused(_bracket(recording.round, plan.suite, bench.raw, extra=(session,)))

            for index, session_plan in enumerate(plan.sessions, start=1):
                arm = plan.baseline if session_plan.arm == "A" else plan.candidate
                watcher.session(session_plan.label, arm.bundle, index, len(plan.sessions))
                session = run_session(session_plan, arm, bench, watcher, go_on=correct)
                recording.add(session)
                if session.crash:  # of A: there is nothing to compare with; of B: that is the verdict
                    break
            comparisons, judgement = judge_round(recording.round, plan.suite, ledger)
            recording.judge(comparisons, judgement)
    write_report(plan.workspace.reports, recording.round)
    return recording.round


def judge_round(round_: Round, suite: LoadedSuite, ledger: Ledger) -> tuple[tuple[Comparison, ...], Judgement]:
    """Compare and judge what a round recorded, with the noise known before it began."""
    raw = ledger.raw_of(round_.id)
    history = pairs_like(round_, ledger)
    compared = (
        ()
        if any(s.crash for s in round_.sessions)
        else compare(suite, round_.sessions, raw, history=history, prior_sigma_pct=round_.sigma_prior_pct)
    )
    return compared, judge(_bracket(round_, suite, raw, comparisons=compared))


def rejudge(workspace: Workspace, round_: Round) -> Judgement:
    """Judge an old round with today's code, from its stored measurements alone."""
    suite = load_measured_suite(workspace.workloads, round_.suite.id, round_.suite.sha256)
    return judge_round(round_, suite, Ledger(workspace.ledger))[1]


def _open(plan: Plan, ledger: Ledger, secret: str, argv: Sequence[str]) -> Round:
    """The round as it stands before its first server starts."""
    return Round(
        id=ledger.new_id(),
        status="running",
        created_utc=now_utc(),
        argv=tuple(argv),
        revision=read_revision(plan.workspace.root),
        host=plan.host,
        fingerprint=plan.fingerprint,
        engine=EngineRef(name=plan.engine.name, version=plan.engine_version, python=plan.engine.python),
        model=ModelRef(path=str(plan.model), sha256=plan.model_sha256),
        suite=SuiteRef(id=plan.suite.id, sha256=plan.suite.sha256),
        protocol=plan.protocol,
        sigma_prior_pct=plan.workspace.on(plan.host.device).sigma_prior_pct,
        hypothesis=plan.bundle.hypothesis,
        expect=plan.bundle.expect,
        baseline=plan.baseline,
        candidate=plan.candidate,
        secret_sha256=commitment(secret),
    )


def _bench(plan: Plan, recording: Recording) -> Bench:
    """What every session of the round shares."""
    return Bench(
        engine=plan.engine,
        launcher=plan.workspace.launcher,
        model=plan.model,
        suite=plan.suite,
        secret_hex=recording.secret_hex,
        start_timeout_s=plan.workspace.settings.engine.start_timeout_s,
        raw=recording.ledger.raw_of(recording.round.id),
        round_id=recording.round.id,
        port=plan.port,
    )


def _bracket(
    round_: Round,
    suite: LoadedSuite,
    raw: Path,
    *,
    comparisons: Sequence[Comparison] = (),
    extra: Sequence[Session] = (),
) -> Bracket:
    """The round's sessions as the judge sees them."""
    engine = plugins.load(engines, round_.engine.name, Engine)
    return Bracket(
        suite=suite,
        derived=dict(engine.derived),
        baseline=round_.baseline,
        candidate=round_.candidate,
        sessions=(*round_.sessions, *extra),
        comparisons=tuple(comparisons),
        raw=raw,
    )


def _refused(bracket: Bracket) -> bool:
    """Whether the candidate is already known to be refused."""
    if not bracket.arm("B"):
        return False
    return any(result.outcome == "refused" for result in check_correctness(bracket))


def _end_leftovers(ledger: Ledger, watcher: Watcher) -> None:
    """Close rounds that were killed and end what they left: we hold the lock, so nothing of them may be running."""
    for round_ in ledger.killed():
        leftovers = list(marked_processes(f"{round_.id}/"))
        end_processes(leftovers, grace_s=10)
        ledger.write(close_killed(round_))
        watcher.note(f"{round_.id} was killed after {len(round_.sessions)} sessions; closed it")
