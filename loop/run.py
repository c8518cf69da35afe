"""One round, top to bottom. Start reading here.

    plan ─ sessions ─ comparisons ─ gates, caveats ─ verdict ─ ledger ─ report

Everything before the sessions is validation; everything after them is a pure function of what was recorded.
"""

import os
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from loop import engines, plugins
from loop.compare import Comparison, compare
from loop.devices import find_peaks
from loop.digest import compare_profiles, digest
from loop.engines import Engine
from loop.environment import changes
from loop.gates import Bracket
from loop.heldback import Heldback, derive_seed, heldback_prompts
from loop.history import noise_before, served_before
from loop.host import end_processes, marked_processes, read_revision
from loop.judge import Judgement, check_correctness, judge
from loop.ledger import EngineRef, Ledger, ModelRef, Round, SuiteRef, now_utc
from loop.plan import Plan
from loop.profiles import Profiled
from loop.profiling import profile_arms
from loop.recording import Recording, close_killed, commitment
from loop.report import write_report
from loop.schedule import SessionPlan, extension
from loop.session import Bench, Session, run_session
from loop.suites import LoadedSuite, load_measured_suite
from loop.watch import Watcher
from loop.weights import read_weights
from loop.wording import count
from loop.workspace import Workspace


def run_round(plan: Plan, watcher: Watcher, *, argv: Sequence[str] = ()) -> Round:
    """Measure the plan's sessions, judge them, keep everything. Returns the closed round."""
    ledger = Ledger(plan.workspace.ledger)
    with ledger.locked():
        _end_leftovers(ledger, plan.workspace.reports, watcher)
        round_id, secret = ledger.new_id(), secrets.token_hex(32)
        heldback = derive_seed(os.environ, secret, round_id) if plan.purpose == "confirmation" else None
        opened = _open(plan, round_id, secret, heldback, argv)
        with _reported(Recording(ledger, opened, secret, heldback), plan.workspace.reports) as recording:
            bench = _bench(plan, recording)

            def correct(session: Session) -> bool:
                """Correctness before performance: a refused candidate is not timed, nor is the A after it."""
                return not _refused(_bracket(recording.round, plan.suite, bench.raw, extra=(session,)))

            for session_plan in _sessions(plan, recording, watcher):
                arm = plan.baseline if session_plan.arm == "A" else plan.candidate
                watcher.session(session_plan.label, arm.bundle)
                recording.add(run_session(session_plan, arm, bench, watcher, go_on=correct))
            comparisons, judgement = judge_round(recording.round, plan.suite, ledger)
            recording.judge(comparisons, judgement)
            if plan.profile_s is not None and not any(session.crash for session in recording.round.sessions):
                recording.attach(_profile(plan, bench, comparisons, watcher))
    return recording.round


def _profile(plan: Plan, bench: Bench, comparisons: Sequence[Comparison], watcher: Watcher) -> Profiled:
    """Two more sessions, which nothing judges: where A and B spend their time, and what moved between them."""
    profiles = [digest(one, bench.raw) for one in profile_arms(plan, bench, watcher)]
    return compare_profiles(profiles, bench.raw, plan.bundle.expect, comparisons)


def _sessions(plan: Plan, recording: Recording, watcher: Watcher) -> Iterator[SessionPlan]:
    """The planned sessions; fewer where the rest could change nothing, two more where they cannot tell.

    A crash of A or another environment leaves nothing to compare with, a crash of B is the verdict. A B that is
    hopeless needs no second A, but a win is never called early. Every session after the third is a second look at the
    same data: what keeps false wins rare is the fresh round that confirms one (docs/study.md).
    """
    planned = deque(plan.sessions)
    while planned:
        yield planned.popleft()
        seen = recording.round.sessions
        if seen[-1].crash or changes(recording.round.terms.environment, seen[-1].environment):
            return
        if plan.purpose == "calibration" or len(seen) not in (2, 3):
            continue
        judgement = judge_round(recording.round, plan.suite, recording.ledger)[1]
        if judgement.verdict.reason == "futile":
            watcher.note("B is far behind: no second A can change that")
            return
        if not planned and plan.extend and judgement.verdict.outcome == "inconclusive":
            watcher.note(f"three sessions cannot tell: {judgement.verdict.text}; two more")
            planned.extend(extension(plan.sessions))


def judge_round(round_: Round, suite: LoadedSuite, ledger: Ledger) -> tuple[tuple[Comparison, ...], Judgement]:
    """Compare and judge what a round recorded, with the noise known before it began."""
    raw = ledger.raw_of(round_.id)
    history = noise_before(round_, ledger)
    compared = (
        ()
        if any(s.crash for s in round_.sessions)
        else compare(suite, round_.sessions, raw, history=history, prior_sigma_pct=round_.sigma_prior_pct)
    )
    earlier = served_before(round_, ledger)
    return compared, judge(_bracket(round_, suite, raw, comparisons=compared, earlier=earlier))


def rejudge(workspace: Workspace, round_: Round) -> Judgement:
    """Judge an old round with today's code, from its stored measurements alone."""
    suite = load_measured_suite(workspace.workloads, round_.suite.id, round_.suite.sha256)
    return judge_round(round_, suite, Ledger(workspace.ledger))[1]


def _open(plan: Plan, round_id: str, secret: str, heldback: str | None, argv: Sequence[str]) -> Round:
    """The round as it stands before its first server starts, with all that judging it will need of model and device."""
    device = plan.workspace.on(plan.host.device)
    return Round(
        id=round_id,
        status="running",
        created_utc=now_utc(),
        argv=tuple(argv),
        revision=read_revision(plan.workspace.root),
        host=plan.host,
        fingerprint=plan.fingerprint,
        engine=EngineRef(name=plan.engine.name, version=plan.engine_version, python=plan.engine.python),
        model=ModelRef(path=str(plan.model), sha256=plan.model_sha256, weights=read_weights(plan.model)),
        peaks=find_peaks(plan.host.gpus[0].name if plan.host.gpus else plan.host.device, device),
        suite=SuiteRef(id=plan.suite.id, sha256=plan.suite.sha256),
        client=plan.terms.client,
        purpose=plan.purpose,
        confirms=plan.confirms,
        protocol=plan.protocol,
        sigma_prior_pct=device.sigma_prior_pct,
        hypothesis=plan.bundle.hypothesis,
        expect=plan.bundle.expect,
        baseline=plan.baseline,
        candidate=plan.candidate,
        secret_sha256=commitment(secret),
        heldback=Heldback(seed_sha256=commitment(heldback)) if heldback else None,
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
        heldback=heldback_prompts(plan.suite.check, recording.heldback_hex) if recording.heldback_hex else (),
    )


def _bracket(
    round_: Round,
    suite: LoadedSuite,
    raw: Path,
    *,
    comparisons: Sequence[Comparison] = (),
    extra: Sequence[Session] = (),
    earlier: Sequence[float] = (),
) -> Bracket:
    """The round's sessions as the judge sees them."""
    engine = plugins.load(engines, round_.engine.name, Engine)
    return Bracket(
        purpose=round_.purpose,
        suite=suite,
        derived=dict(engine.derived),
        baseline=round_.baseline,
        candidate=round_.candidate,
        sessions=(*round_.sessions, *extra),
        comparisons=tuple(comparisons),
        raw=raw,
        environment=round_.terms.environment,
        weights=round_.model.weights,
        peaks=round_.peaks,
        earlier=tuple(earlier),
    )


def _refused(bracket: Bracket) -> bool:
    """Whether the candidate is already known to be refused."""
    if not bracket.arm("B"):
        return False
    return any(result.outcome == "refused" for result in check_correctness(bracket))


@contextmanager
def _reported(recording: Recording, reports: Path) -> Iterator[Recording]:
    """Record the round inside; once it is closed, however that came, it has its page."""
    try:
        with recording:
            yield recording
    finally:
        if recording.round.status == "closed":
            write_report(reports, recording.round)


def _end_leftovers(ledger: Ledger, reports: Path, watcher: Watcher) -> None:
    """Close rounds that were killed and end what they left: we hold the lock, so nothing of them may be running."""
    for round_ in ledger.killed():
        leftovers = list(marked_processes(f"{round_.id}/"))
        end_processes(leftovers, grace_s=10)
        closed = close_killed(round_)
        ledger.write(closed)
        write_report(reports, closed)
        watcher.note(f"{round_.id} was killed after {count(len(round_.sessions), 'session')}; closed it")
