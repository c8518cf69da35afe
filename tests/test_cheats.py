"""One test per cheat of docs/cheats.md, end to end on the fake engine where a server does it: who catches it."""

import re
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import tomlkit

from loop.engines.sglang import SGLang
from loop.errors import BundleError, HardStop, SuiteError, UnfitError
from loop.gates import GateResult
from loop.heldback import ROOT, derive_seed
from loop.host import free_port, port_open
from loop.ledger import Ledger, Round
from loop.measure import replies_of
from loop.plan import Options, make_plan
from loop.recording import commitment
from loop.run import rejudge
from loop.workspace import Workspace, find_workspace
from tests.conftest import REPOSITORY

Run = Callable[..., Round]
Write = Callable[..., str]
KEPT = "a root that is long enough"
SALT = "[a-z]{5} [a-z]{5} [a-z]{5} "
"""What a timed prompt begins with, however short it was cut."""
SLOW = {"ttft_ms": 70.0, "tpot_ms": 1.0}
"""Delays beside which a cheat shows, whatever else this machine does."""


def gates_of(workspace: Workspace, **settings: dict[str, float]) -> None:
    """Change settings of the suite's gates."""
    path = workspace.workloads / "brief" / "suite.toml"
    document = tomlkit.parse(path.read_text()).unwrap()
    document["gates"].update(settings)
    path.write_text(tomlkit.dumps(document))


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """One in which a client that is late because this machine is busy spoils no verdict."""
    late = {"max_lag_ms": 1e4, "max_outside_ms": 1e4, "max_cpu_share": 2.0}
    gates_of(workspace, client_bound=late)
    return workspace


@pytest.fixture
def cheat(run: Run, write_bundle: Write) -> Callable[..., Round]:
    """A function that runs a round of a candidate with these options against a baseline with the same delays."""

    def run_(*faults: str, protocol: str = "aba", port: int | None = None, **args: object) -> Round:
        write_bundle("original", args=SLOW)
        write_bundle("cheat", parent="original", args={**({"fault": list(faults)} if faults else {}), **args})
        return run("cheat", protocol=protocol, port=port)

    return run_


@pytest.fixture
def copy(noop: tuple[Workspace, Round], tmp_path: Path) -> tuple[Workspace, Round]:
    """A copy of a workspace with one closed round, to be spoiled."""
    shutil.copytree(noop[0].root, tmp_path / "copy")
    return find_workspace(tmp_path / "copy"), noop[1]


def outcome(round_: Round) -> tuple[str, str]:
    """The verdict's outcome and reason."""
    assert round_.verdict is not None, round_.failure
    return round_.verdict.outcome, round_.verdict.reason


def gate(round_: Round, name: str) -> GateResult:
    """What one gate said."""
    return next(result for result in round_.gates if result.gate == name)


# answers that were not computed


def test_answers_of_an_earlier_session_are_no_answers(cheat: Callable[..., Round]) -> None:
    """B finds what A1 was asked beside its own files, and answers that four times as fast. Only its canary is new."""
    round_ = cheat("stolen_answers")

    assert ("regressed", "canary_slow") == outcome(round_)
    assert ("passed", "passed") == (gate(round_, "timed_path").outcome, gate(round_, "prefix_match").outcome)


def test_answers_that_a_candidate_stored_do_not_serve_its_next_session(
    cheat: Callable[..., Round], tmp_path: Path
) -> None:
    """A/B/A/B/A: the second B remembers all that the first one was asked, on disk; its own canary is another."""
    round_ = cheat("answer_cache", protocol="ababa", cache_file=str(tmp_path / "seen.txt"))

    found = gate(round_, "canary")
    assert ("refused", "canary_slow") == (found.outcome, found.reason)
    assert " in B2: " in found.text


def test_a_cache_of_answers_finds_nothing_within_a_session(cheat: Callable[..., Round]) -> None:
    """No prompt is sent twice to one server: salts. What was stored is of no use, and no gain is seen."""
    round_ = cheat("answer_cache")

    assert round_.verdict is not None
    assert round_.verdict.outcome in ("no_change", "inconclusive"), round_.verdict.text


# right when checked


def test_a_server_that_detects_a_benchmark_is_refused(cheat: Callable[..., Round]) -> None:
    """Fast and wrong on salted prompts, right on all others: the timed answers are compared too."""
    round_ = cheat("benchmark_detection", salt_pattern=SALT)

    assert ("regressed", "timed_path") == outcome(round_)
    assert "passed" == gate(round_, "prefix_match").outcome


def test_a_server_that_is_right_when_checked_and_wrong_under_load_is_refused(cheat: Callable[..., Round]) -> None:
    """One request at a time it is right, and several are never checked alone."""
    round_ = cheat("wrong_under_load")

    assert ("regressed", "timed_path") == outcome(round_)
    assert round_.verdict is not None
    assert round_.verdict.text.startswith("timed_path: four: ")


def test_answers_that_are_cut_under_load_are_refused(cheat: Callable[..., Round]) -> None:
    """Fewer tokens than asked for are failures, not speed."""
    assert ("regressed", "requests_failed") == outcome(cheat("truncate_under_load"))


def test_a_server_that_learned_the_visible_prompts_fails_the_held_back_ones(
    run: Run, write_bundle: Write, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a confirmation. Their seed is committed to first and revealed at the end; the root behind it never is."""
    monkeypatch.setenv(ROOT, KEPT)
    known = str(workspace.workloads / "brief" / "check.jsonl")
    write_bundle("overfitted", args={"fault": ["overfitted"], "known_prompts": known, "salt_pattern": SALT})

    round_ = run("overfitted", purpose="confirmation")

    assert ("regressed", "prefix_match") == outcome(round_)
    values = gate(round_, "prefix_match").values
    assert (1.0, True) == (values["visible_mean"], values["heldback_mean"] < 0.5)
    assert round_.heldback is not None
    assert round_.heldback.seed_hex == derive_seed({ROOT: KEPT}, "", round_.id)
    assert round_.heldback.seed_sha256 == commitment(round_.heldback.seed_hex)
    files = [path.read_bytes() for path in workspace.root.rglob("*") if path.is_file()]
    assert [] == [content for content in files if KEPT.encode() in content]


@pytest.mark.xdist_group("noop")
def test_only_a_confirmation_has_held_back_prompts(noop: tuple[Workspace, Round]) -> None:
    """Whoever may ask as often as he likes learns them."""
    workspace, round_ = noop
    raw = Ledger(workspace.ledger).raw_of(round_.id)

    assert round_.heldback is None
    checked = [reply for session in round_.sessions for m in session.measured("check") for reply in replies_of(m, raw)]
    assert [] == [reply.rid for reply in checked if reply.is_heldback]


# numbers that are not what they seem


def test_tokens_that_are_held_back_and_sent_together_are_refused(cheat: Callable[..., Round]) -> None:
    """It hides the time per token, and no acceptance of drafts explains it."""
    assert ("regressed", "coalesced") == outcome(cheat("coalesce"))


def test_what_no_device_can_do_is_not_believed(cheat: Callable[..., Round], workspace: Workspace) -> None:
    """Here a device that needs 0.5 ms for a token: the baseline takes 1 ms, the candidate a tenth."""
    gates_of(workspace, physics={"min_tpot_ms": 0.5})

    round_ = cheat(tpot_ms=0.1)

    assert ("regressed", "physics") == outcome(round_)
    assert round_.verdict is not None
    assert "and 0.500 ms is the least" in round_.verdict.text


@pytest.mark.parametrize(
    "env",
    [{"SGLANG_SIMULATE_ACC_LEN": "4"}, {"SGLANG_SIMULATE_ACC_METHOD": "match-expected"}],
    ids=lambda env: next(iter(env)),
)
def test_simulated_acceptance_is_denied(workspace: Workspace, write_bundle: Write, env: dict[str, str]) -> None:
    """Before anything starts; so are acceptance thresholds below 1, and longer intervals between events."""
    write_bundle("cheat", env=env)

    with pytest.raises(BundleError, match="is denied: simulated acceptance is not speed"):
        make_plan(workspace, "cheat", Options())
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        allows = SGLang.denied[name].allows
        assert allows is not None
        assert (True, False) == (allows(1.0), allows(0.9))
    assert SGLang.denied["stream_interval"].allows is None


# another server than the one that is measured


def test_another_model_is_not_a_faster_server(workspace: Workspace, write_bundle: Write) -> None:
    """Neither by its path nor under another's name."""
    for option, value in (("model_path", "/elsewhere"), ("served_model_name", "tiny")):
        write_bundle("cheat", args={option: value})

        with pytest.raises(BundleError, match="is denied in a bundle"):
            make_plan(workspace, "cheat", Options())
    for name in ("model_path", "served_model_name", "tokenizer_path", "load_format", "json_model_override_args"):
        assert name in SGLang.denied


def test_a_process_that_survives_its_server_is_ended_and_named(cheat: Callable[..., Round]) -> None:
    """One that carries the session's mark and one that dropped it: both would be measured in the next session."""
    round_ = cheat("orphan", "hidden_orphan")

    a1, b, a2 = round_.sessions
    assert (0, 2, 0) == (len(a1.exit.survivors), len(b.exit.survivors), len(a2.exit.survivors))
    (caveat,) = [caveat for caveat in round_.caveats if caveat.code == "left_behind"]
    assert caveat.text.startswith("session B left ")


def test_a_process_that_keeps_the_port_does_not_serve_the_next_session(cheat: Callable[..., Round]) -> None:
    """All sessions listen on one port here; the squatter is gone before A2 starts."""
    round_ = cheat("port_squatter", port=(port := free_port()))

    _, b, a2 = round_.sessions
    assert (1, True) == (len(b.exit.survivors), b.exit.port_closed)
    assert a2.crash is None
    assert ["left_behind"] == [caveat.code for caveat in round_.caveats if caveat.code == "left_behind"]
    assert not port_open(port)


def test_a_server_that_is_there_already_is_not_measured(workspace: Workspace) -> None:
    """Whoever answers on the port, it is not what the launcher starts."""
    with closing(socket.create_server(("127.0.0.1", 0))) as squatter:
        port = squatter.getsockname()[1]

        with pytest.raises(UnfitError, match=f"port {port} is in use: the client would measure another server"):
            make_plan(workspace, "noop", Options(port=port))


def test_a_baseline_that_is_slow_on_purpose_is_not_caught_within_a_round(run: Run, write_bundle: Write) -> None:
    """Both As are slow alike, and their answers are right. Only earlier rounds of the same baseline tell.

    Who can change what the engine does for A can change what it does for anybody: its files are no part of a bundle.
    `baseline_slower` is the caveat once there are earlier rounds (tests/test_caveats.py, tests/test_history.py).
    """
    write_bundle("original", args={"ttft_ms": 10.0, "tpot_ms": 0.5, "fault": ["slow_baseline"]})
    write_bundle("innocent", parent="original", args={"inert_number": 1})

    round_ = run("innocent")

    assert ("improved", "measured") == outcome(round_)
    assert "baseline_slower" not in [caveat.code for caveat in round_.caveats]


# what was measured, and what became of it


@pytest.mark.xdist_group("noop")
def test_an_edited_suite_is_another_suite(copy: tuple[Workspace, Round]) -> None:
    """A prompt that does not hash to what the suite says is refused; so is a round of a suite that is no more."""
    workspace, round_ = copy
    directory = workspace.workloads / "brief"
    prompts, suite = (directory / "one.jsonl").read_bytes(), (directory / "suite.toml").read_text()

    (directory / "one.jsonl").write_bytes(prompts.replace(b'"max_new_tokens":12', b'"max_new_tokens":2'))
    with pytest.raises(SuiteError, match="the workload was edited"):
        make_plan(workspace, "noop", Options())

    (directory / "one.jsonl").write_bytes(prompts)
    (directory / "suite.toml").write_text(suite.replace("concurrency = 4", "concurrency = 8"))
    with pytest.raises(SuiteError, match="the round was measured with suite brief"):
        rejudge(workspace, round_)


@pytest.mark.xdist_group("noop")
def test_an_edited_ledger_stops_everything(copy: tuple[Workspace, Round]) -> None:
    """Whatever was changed: no further round is judged by it, and nothing ships from it."""
    workspace, round_ = copy
    ledger = Ledger(workspace.ledger)
    path = ledger.rounds / f"{round_.id}.json"
    path.write_text(path.read_text().replace('"no_change"', '"improved"'))

    with pytest.raises(HardStop, match=round_.id), ledger.locked():
        pass
    path.unlink()
    with pytest.raises(HardStop, match=round_.id):
        ledger.verify()


def test_every_cheat_of_the_table_has_its_test() -> None:
    """By a name that exists, in the file that it names."""
    table = (REPOSITORY / "docs" / "cheats.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:(test_\w+)\.py::)?(test_\w+)`", table)

    assert len(named) > 20
    missing = [
        name
        for module, name in named
        if f"def {name}(" not in (REPOSITORY / "tests" / f"{module or 'test_cheats'}.py").read_text(encoding="utf-8")
    ]
    assert [] == missing
