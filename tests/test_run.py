"""Whole rounds against the fake engine: what each kind of candidate comes out as."""

import hashlib
import json
from collections.abc import Callable

import pytest

from loop.errors import UnfitError
from loop.ledger import Ledger, Round
from loop.report import report_path
from loop.run import rejudge
from loop.watch import Watcher
from loop.workspace import Workspace
from tests.brackets import stored_round

Run = Callable[..., Round]
Write = Callable[..., str]


def outcome(round_: Round) -> tuple[str, str]:
    """The verdict's outcome and reason."""
    assert round_.verdict is not None, round_.failure
    return round_.verdict.outcome, round_.verdict.reason


@pytest.mark.xdist_group("noop")
def test_an_empty_bundle_is_no_change_with_score_exactly_zero(noop: tuple[Workspace, Round]) -> None:
    """The no-op test: relaunching the baseline earns nothing, whatever the noise."""
    _, round_ = noop

    assert ("no_change", "identical") == outcome(round_)
    assert round_.score is not None
    assert round_.score.score == 0.0


@pytest.mark.xdist_group("won")
def test_a_much_faster_candidate_is_improved_and_every_gate_passes(won: Workspace) -> None:
    """A quarter of the delays show far above twenty per cent of noise."""
    (round_,) = Ledger(won.ledger).read_all()

    assert ("improved", "measured") == outcome(round_)
    assert {"passed"} == {gate.outcome for gate in round_.gates}
    assert round_.promotable
    assert round_.score is not None
    assert round_.score.score > 0.5


def test_wrong_answers_are_refused_before_anything_is_timed(run: Run, write_bundle: Write) -> None:
    """Correctness before performance: B's and A2's timed steps are skipped."""
    write_bundle("wrong", numerics="near", args={"answer_seed": 7})

    round_ = run("wrong")

    assert ("regressed", "prefix_match") == outcome(round_)
    assert round_.verdict is not None
    assert "prefix_match" in round_.verdict.refused_by
    assert {"A1": 3, "B": 1, "A2": 1} == {s.label: len(s.measurements) for s in round_.sessions}
    assert round_.score is None


def test_a_baseline_that_does_not_repeat_itself_makes_the_round_invalid(run: Run, write_bundle: Write) -> None:
    """Nobody can be judged against answers that differ from start to start."""
    write_bundle("dice", numerics="near", args={"fault": ["unstable_answer"]})
    write_bundle("dice2", parent="dice", args={"inert_number": 1})

    round_ = run("dice2", baseline="dice")

    assert ("invalid", "unstable") == outcome(round_)


def test_a_candidate_that_does_not_start_is_a_verdict(run: Run, write_bundle: Write) -> None:
    """A crash of B is a result; there is no need for A2."""
    write_bundle("broken", args={"fault": ["die_at_start"]})

    round_ = run("broken")

    assert ("regressed", "server_start_failed") == outcome(round_)
    assert ["A1", "B"] == [session.label for session in round_.sessions]
    crash = round_.sessions[1].crash
    assert crash is not None
    assert "Traceback" in crash.log_tail


def test_a_candidate_that_dies_under_load_is_a_verdict(run: Run, write_bundle: Write) -> None:
    """So is a death in the middle of a stream."""
    write_bundle("fragile", args={"fault": ["die_mid_stream"], "fault_after": 20})

    round_ = run("fragile")

    assert ("regressed", "crash_under_load") == outcome(round_)


def test_a_baseline_that_does_not_start_makes_the_round_invalid(run: Run, write_bundle: Write) -> None:
    """Nothing can be said about the candidate."""
    write_bundle("broken", args={"fault": ["die_at_start"]})

    round_ = run("noop", baseline="broken")

    assert ("invalid", "baseline_crashed") == outcome(round_)
    assert ["A1"] == [session.label for session in round_.sessions]


def test_a_setting_that_is_silently_ignored_has_no_effect(run: Run, write_bundle: Write) -> None:
    """Asked and ignored: whatever was measured is noise."""
    write_bundle("ignored", args={"ignored_number": 5})

    round_ = run("ignored")

    assert ("no_change", "no_effect") == outcome(round_)
    assert round_.verdict is not None
    assert ("config",) == round_.verdict.refused_by


def test_a_server_that_refuses_to_flush_crashes_its_session(run: Run, write_bundle: Write) -> None:
    """A cache in an unknown state is not measured."""
    write_bundle("sticky", args={"fault": ["flush_refused"]})

    round_ = run("sticky")

    assert ("regressed", "flush_refused") == outcome(round_)


def test_a_baseline_that_refuses_to_flush_makes_the_round_invalid(run: Run, write_bundle: Write) -> None:
    """With what it said."""
    write_bundle("sticky", args={"fault": ["flush_refused"]})

    round_ = run("noop", baseline="sticky")

    assert ("invalid", "baseline_crashed") == outcome(round_)
    assert round_.verdict is not None
    assert "A1 refused to flush its cache: HTTP 400" in round_.verdict.text


def test_a_candidate_that_accepts_and_never_answers_is_given_up_after_one_timeout(
    run: Run, write_bundle: Write, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request per stream is sent and no second one: each would wait for a timeout of its own."""
    monkeypatch.setattr("loop.measure.IDLE_TIMEOUT_S", 1.0)
    write_bundle("mute", args={"fault": ["never_answers"]})

    round_ = run("mute")

    assert ("regressed", "crash_under_load") == outcome(round_)
    assert round_.verdict is not None
    assert "answered none of 4 requests: 4 failed with idle_timeout" in round_.verdict.text
    assert ((), ()) == (round_.sessions[1].warmup_tokens_per_s, round_.sessions[1].measurements)
    sent = (workspace.ledger / "raw" / round_.id / "B" / "warmup").glob("*.job.json")
    assert ["first_wave-0.job.json"] == [path.name for path in sent]


@pytest.mark.parametrize(("fault", "kind"), [("http_500", "http_status"), ("abort", "aborted")])
def test_a_baseline_that_serves_nobody_makes_the_round_invalid_at_once(
    run: Run, write_bundle: Write, fault: str, kind: str
) -> None:
    """Without a check, a timed step or a B."""
    write_bundle("broken", args={"fault": [fault]})

    round_ = run("noop", baseline="broken")

    assert ("invalid", "baseline_crashed") == outcome(round_)
    assert round_.verdict is not None
    assert f"answered none of 4 requests: 4 failed with {kind}" in round_.verdict.text
    assert [("A1", ())] == [(session.label, session.measurements) for session in round_.sessions]


def test_a_server_that_falls_silent_later_in_the_warm_up_is_given_up_too(run: Run, write_bundle: Write) -> None:
    """Its first wave was fine."""
    write_bundle("tired", args={"fault": ["http_500"], "fault_after": 11})

    round_ = run("tired")

    assert ("regressed", "crash_under_load") == outcome(round_)
    assert 1 == len(round_.sessions[1].warmup_tokens_per_s)


def test_a_server_that_had_to_be_killed_weakens_the_round(
    run: Run, write_bundle: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is judged all the same."""
    monkeypatch.setattr("loop.server.STOP_GRACE_S", 0.5)
    write_bundle("stubborn", args={"fault": ["hang_at_stop"], "inert_number": 1})

    round_ = run("stubborn")

    (caveat,) = [caveat for caveat in round_.caveats if caveat.code == "killed_at_stop"]
    assert caveat.text.endswith("was killed in B")
    assert ["clean", "killed", "clean"] == [session.exit.how for session in round_.sessions]


class Stopper(Watcher):
    """Raises when B is about to be checked."""

    def __init__(self, problem: BaseException) -> None:
        self.problem = problem
        self.label = ""

    def session(self, label: str, bundle: str) -> None:
        """Remember whose phases follow."""
        self.label = label

    def phase(self, name: str, num_requests: int = 0) -> None:
        """The moment."""
        if (self.label, name) == ("B", "check"):
            raise self.problem


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (KeyboardInterrupt(), "(interrupted): interrupted by a person"),
        (UnfitError("the disk is full", next="make room"), "(environment): the disk is full\n  next: make room"),
        (RuntimeError("a bug"), "(internal): RuntimeError: a bug"),
    ],
)
def test_a_round_that_failed_has_its_page(run: Run, workspace: Workspace, problem: BaseException, said: str) -> None:
    """With the failure, the sessions it has and the next command; the problem is raised all the same."""
    with pytest.raises(type(problem)):
        run("noop", watcher=Stopper(problem))

    (round_,) = Ledger(workspace.ledger).read_all()
    page = report_path(workspace.reports, round_).read_text()
    assert f"**no verdict** {said}" in page
    assert "Next: `loop run noop`" in page
    assert "| A1 |" in page
    assert "| B |" not in page


def test_a_round_that_was_killed_has_its_page_once_the_next_one_closes_it(run: Run, workspace: Workspace) -> None:
    """Written by the next run, which found it running and its process gone."""
    killed = stored_round()
    Ledger(workspace.ledger).write(killed)

    run("noop")

    page = report_path(workspace.reports, killed).read_text()
    assert "**no verdict** (killed): the process that ran the round was killed" in page
    assert "None was finished." in page


@pytest.mark.xdist_group("noop")
def test_an_old_round_is_judged_again_from_its_record_alone(noop: tuple[Workspace, Round]) -> None:
    """Everything after the measurements is a pure function of what was stored."""
    workspace, round_ = noop

    again = rejudge(workspace, Ledger(workspace.ledger).read(round_.id))

    assert round_.verdict == again.verdict
    assert round_.gates == again.gates
    assert round_.score == again.score


@pytest.mark.xdist_group("noop")
def test_the_salts_secret_is_committed_to_first_and_revealed_at_the_end(noop: tuple[Workspace, Round]) -> None:
    """Nobody can know the salted prompts before the round."""
    _, round_ = noop

    assert round_.secret_hex is not None
    assert round_.secret_sha256 == hashlib.sha256(bytes.fromhex(round_.secret_hex)).hexdigest()


@pytest.mark.xdist_group("noop")
def test_every_arm_gets_the_same_token_ids(noop: tuple[Workspace, Round]) -> None:
    """The same salted requests in A1, B and A2; a canary's shape in A1, the canary itself in B and A2, in one place."""
    workspace, round_ = noop

    def sent(label: str) -> dict[str, list[int]]:
        job = json.loads((workspace.ledger / "raw" / round_.id / label / "four-0.job.json").read_text())
        return {request["rid"]: request["input_ids"] for request in job["requests"]}

    a1, b, a2 = sent("A1"), sent("B"), sent("A2")
    assert b == a2
    assert [rid.replace("-A1-", "-B-") for rid in a1] == list(b)
    assert [len(ids) for ids in a1.values()] == [len(ids) for ids in b.values()]
    assert ["canary-B-four-0-000"] == [rid for rid, ids in b.items() if ids not in a1.values()]


@pytest.mark.xdist_group("noop")
def test_the_cost_of_orchestration_is_recorded(noop: tuple[Workspace, Round]) -> None:
    """Phases account for the time of a session; what is left over is its overhead."""
    _, round_ = noop

    for session in round_.sessions:
        assert {"launch", "warmup", "check", "timed", "stop", "overhead"} == set(session.phases_s)
        assert session.phases_s["overhead"] >= 0
