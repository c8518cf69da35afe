"""Whole rounds against the fake engine: what each kind of candidate comes out as."""

import hashlib
import json
from collections.abc import Callable

import pytest

from loop.ledger import Ledger, Round
from loop.run import rejudge
from loop.workspace import Workspace

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


def test_a_much_faster_candidate_is_improved_and_every_gate_passes(run: Run, write_bundle: Write) -> None:
    """Half the delays show far above two per cent of noise."""
    write_bundle("slow", args={"tpot_ms": 12.0, "ttft_ms": 30.0})
    write_bundle("fast", parent="slow", args={"tpot_ms": 3.0, "ttft_ms": 6.0})

    round_ = run("fast", baseline="slow")

    assert ("improved", "measured") == outcome(round_)
    assert {"passed"} == {gate.outcome for gate in round_.gates}
    assert round_.promotable
    assert round_.score is not None
    assert round_.score.score > 0.5


def test_a_much_slower_candidate_is_regressed(run: Run, write_bundle: Write) -> None:
    """Slower as a whole is a measurement, not a refusal."""
    write_bundle("slow", args={"tpot_ms": 12.0, "ttft_ms": 30.0})

    round_ = run("slow")

    assert ("regressed", "regression") == outcome(round_)
    assert round_.verdict is not None
    assert round_.verdict.refused_by == ()


def test_wrong_answers_are_refused_before_anything_is_timed(run: Run, write_bundle: Write) -> None:
    """Correctness before performance: B's and A2's timed steps are skipped."""
    write_bundle("wrong", numerics="near", args={"answer_seed": 7})

    round_ = run("wrong")

    assert ("regressed", "prefix_match") == outcome(round_)
    assert round_.verdict is not None
    assert "prefix_match" in round_.verdict.refused_by
    assert {"A1": 3, "B": 1, "A2": 1} == {s.label: len(s.measurements) for s in round_.sessions}
    assert round_.score is None


def test_a_server_that_is_right_when_checked_and_wrong_under_load_is_refused(run: Run, write_bundle: Write) -> None:
    """The timed path is compared too."""
    write_bundle("careless", args={"fault": ["wrong_under_load"]})

    round_ = run("careless")

    assert ("regressed", "timed_path") == outcome(round_)


def test_truncated_answers_are_refused(run: Run, write_bundle: Write) -> None:
    """Fewer tokens than asked for are failures, not speed."""
    write_bundle("short", args={"fault": ["truncate_under_load"]})

    round_ = run("short")

    assert ("regressed", "requests_failed") == outcome(round_)


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

    assert ("regressed", "crash_under_load") == outcome(round_)


def test_detached_processes_are_found_ended_and_reported(run: Run, write_bundle: Write) -> None:
    """A server that survives its stop would be measured in the next session."""
    write_bundle("sneaky", args={"fault": ["orphan"]})

    round_ = run("sneaky")

    b = round_.sessions[1]
    assert len(b.exit.survivors) == 1
    assert "left_behind" in [caveat.code for caveat in round_.caveats]


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
    """The same salted requests in A1, B and A2."""
    workspace, round_ = noop

    def sent(label: str) -> list[list[int]]:
        job = json.loads((workspace.ledger / "raw" / round_.id / label / "one-0.job.json").read_text())
        return [request["input_ids"] for request in job["requests"]]

    assert sent("A1") == sent("B") == sent("A2")


@pytest.mark.xdist_group("noop")
def test_the_cost_of_orchestration_is_recorded(noop: tuple[Workspace, Round]) -> None:
    """Phases account for the time of a session; what is left over is its overhead."""
    _, round_ = noop

    for session in round_.sessions:
        assert {"launch", "warmup", "check", "timed", "stop", "overhead"} == set(session.phases_s)
        assert session.phases_s["overhead"] >= 0
