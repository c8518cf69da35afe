"""The `loop` command as a person meets it: messages, exit codes, JSON, interruption and sudden death."""

import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loop import __version__
from loop.commands import next_command
from loop.host import marked_processes
from loop.judge import Verdict
from loop.ledger import Ledger, Round
from loop.workspace import Workspace
from tests.brackets import stored_round
from tests.conftest import Answer, ask

Loop = Callable[..., Answer]
Process = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., str]


def started(workspace: Workspace, *arguments: str) -> subprocess.Popen[str]:
    """The `loop` command, running."""
    return subprocess.Popen(
        [sys.executable, "-m", "loop", *arguments],
        cwd=workspace.root,
        env={**os.environ, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read the command's progress until it says `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}")


def test_an_unknown_bundle_is_named_with_the_known_ones(loop_process: Process) -> None:
    """A typo costs a second."""
    done = loop_process("run", "nosuch")

    assert 2 == done.returncode
    assert "no bundle called 'nosuch'" in done.stderr
    assert "known: noop, original" in done.stderr
    assert "next:" in done.stderr
    assert "" == done.stdout


def test_a_misspelt_flag_is_refused_with_the_closest_match(
    loop: Loop, write_bundle: Write, workspace: Workspace
) -> None:
    """Before anything starts, and without a trace in the ledger."""
    write_bundle("typo", args={"tpot_mss": 1.0})

    done = loop("run", "typo")

    assert 2 == done.returncode
    assert "--tpot-mss is not an option of the installed engine; did you mean 'tpot-ms'?" in done.stderr
    assert not list((workspace.ledger / "rounds").glob("*"))


def test_an_abbreviated_flag_is_refused(loop: Loop, write_bundle: Write) -> None:
    """Argparse might accept it, and it would slip past the deny list."""
    write_bundle("short", args={"served_model": "x"})

    done = loop("validate", "short")

    assert 2 == done.returncode
    assert "--served-model is not an option" in done.stderr


def test_a_denied_flag_is_refused_with_the_reason(loop: Loop, write_bundle: Write) -> None:
    """Where the server listens is not the candidate's choice."""
    write_bundle("elsewhere", args={"port": 1})

    done = loop("validate", "elsewhere")

    assert 2 == done.returncode
    assert "--port = 1 is denied in a bundle" in done.stderr


def test_a_missing_model_is_refused_with_the_way_to_get_one(loop: Loop) -> None:
    """Before anything starts."""
    done = loop("run", "noop", "--model", "/no/such/model")

    assert 2 == done.returncode
    assert "/no/such/model is not a model directory" in done.stderr
    assert "loop init --synthetic tiny" in done.stderr


def test_an_occupied_port_is_refused_before_anything_starts(loop: Loop, workspace: Workspace) -> None:
    """The client would measure what listens there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        done = loop("run", "noop", "--port", str(port))

    assert 5 == done.returncode
    assert f"port {port} is in use" in done.stderr
    assert not (workspace.ledger / "rounds").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "noop", "--suite", "smok"), "did you mean 'smoke'?"),
        (("run", "noop", "--baseline", "orginal"), "did you mean 'original'?"),
        (("run", "noop", "--engine", "fakee"), "did you mean 'fake'?"),
        (("run", "noop", "--protocol", "bab"), "known: aba, abba, ababa"),
        (("run", "noop", "--port", "70000"), "or equal to 65535"),
        (("init", "loop.toml"), "loop.toml is a file"),
        (("promote",), "give a round, or --rollback"),
        (("promote", "7"), "no round '7'"),
        (("report", "R000009"), "there is none yet"),
    ],
)
def test_wrong_input_names_what_is_known(loop: Loop, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 2, one sentence, no traceback."""
    done = loop(*arguments)

    assert 2 == done.returncode
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_outside_a_workspace_the_command_says_how_to_make_one(tmp_path: Path) -> None:
    """`loop.toml` is looked for upwards."""
    done = ask(tmp_path, "plan", "noop")

    assert 2 == done.returncode
    assert "no loop.toml" in done.stderr
    assert "loop init DIR" in done.stderr


def test_a_round_as_json_is_one_document_on_stdout(loop_process: Process) -> None:
    """Progress goes to stderr, as plain lines where there is no terminal."""
    done = loop_process("run", "noop", "--json", "--exit-code")

    round_ = json.loads(done.stdout)
    assert 10 == done.returncode
    assert "loop.round/1" == round_["schema"]
    assert "closed" == round_["status"]
    assert "session A1: original" in done.stderr


def test_the_exit_code_tells_the_verdict_when_asked(loop: Loop, write_bundle: Write) -> None:
    """Without --exit-code a recorded round is a success whatever its verdict."""
    write_bundle("wrong", args={"answer_seed": 5})

    done = loop("run", "wrong", "--exit-code")

    assert 12 == done.returncode
    assert "refused by" in done.stdout
    assert "prefix_match" in done.stdout
    assert "next" in done.stdout


def test_a_dry_run_starts_nothing(loop: Loop, workspace: Workspace) -> None:
    """It shows what would happen."""
    done = loop("run", "noop", "--dry-run")

    assert 0 == done.returncode
    assert "A1" in done.stdout
    assert "minutes" in done.stdout
    assert not (workspace.ledger / "rounds").exists()


@pytest.mark.xdist_group("noop")
def test_a_stored_round_is_listed_shown_reported_and_judged(noop: tuple[Workspace, Round]) -> None:
    """Every command that reads the ledger, as text and as JSON."""
    workspace, round_ = noop

    def read(*arguments: str) -> str:
        done = ask(workspace.root, *arguments)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    assert round_.id in read("ledger", "list")
    assert round_.id == json.loads(read("ledger", "list", "--json"))[0]["id"]
    assert "no_change (identical)" in read("ledger", "show", "1")
    assert f"# {round_.id}: noop against original" in read("report", "R000001")
    assert "shipped: nothing" in read("report")
    assert {"no_change": 1} == json.loads(read("report", "--json"))["summary"]["outcomes"]
    assert "the judgement is the same" in read("judge", "1")
    assert "1 round chained, none changed" in read("ledger", "verify")
    assert all(len(line) <= 80 for line in read("ledger", "show", "1").splitlines())


@pytest.mark.xdist_group("won")
def test_promoting_and_rolling_back(won: Workspace, tmp_path: Path) -> None:
    """The preview, the pointer, and back."""
    shutil.copytree(won.root, tmp_path / "copy")

    def loop(*arguments: str) -> Answer:
        done = ask(tmp_path / "copy", *arguments)
        assert 0 == done.returncode, done.stderr
        return done

    confirmed = loop("confirm", "1")
    rehearsed = loop("promote", "1", "--dry-run")
    promoted = loop("promote", "1")
    rolled_back = loop("promote", "--rollback")

    assert "next loop promote R000001" in confirmed.stdout
    assert "+--tpot-ms 3.0" in rehearsed.stdout
    assert "shipped: nothing" in rehearsed.stdout
    assert "shipped on cpu: fast" in promoted.stdout
    assert "shipped: nothing" in rolled_back.stdout


def test_calibrating_prints_what_the_noise_lets_a_round_certify(loop: Loop, workspace: Workspace) -> None:
    """A against A, stored as a calibration that can never ship; the noise floor by workload."""
    done = loop("calibrate", "original", "--rounds", "1", "--json")

    assert 0 == done.returncode, done.stderr
    floors = {floor["scope"]: floor for floor in json.loads(done.stdout)}
    (round_,) = Ledger(workspace.ledger).read_all()
    assert ["one", "four", "class:concurrent", "class:sequential", "all"] == list(floors)
    assert {6} == {floor["dof"] for floor in floors.values()}
    assert ("calibration", False) == (round_.purpose, round_.promotable)
    assert round_.candidate.sha256 == round_.baseline.sha256
    assert ["A1", "B", "A2"] == [session.label for session in round_.sessions]


def test_two_rounds_at_once_are_refused(loop: Loop, write_bundle: Write, workspace: Workspace) -> None:
    """They would measure each other."""
    write_bundle("late", args={"start_delay_s": 5.0})
    with started(workspace, "run", "late", "--baseline", "late") as first:
        read_until(first, "starting the server")

        second = loop("run", "noop")

        assert 5 == second.returncode
        assert f"another round is running here (pid {first.pid}" in second.stderr
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_round_closes_its_record_and_stops_its_server(workspace: Workspace, number: int) -> None:
    """Ctrl-C or a polite end: exit 130."""
    with started(workspace, "run", "noop") as process:
        read_until(process, "A1: check")
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    (round_,) = Ledger(workspace.ledger).read_all()
    assert 130 == process.returncode
    assert "interrupted" in errors
    assert round_.failure is not None
    assert "interrupted" == round_.failure.kind
    assert [] == list(marked_processes(round_.id))


def test_killing_loop_leaves_no_server_and_a_valid_ledger(
    loop: Loop, workspace: Workspace, write_bundle: Write
) -> None:
    """Kill -9 during B: A1 is kept, the server is gone, the next round closes the killed one."""
    write_bundle("steady", args={"inert_number": 1})
    with started(workspace, "run", "steady") as process:
        read_until(process, "B: check")
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
    ledger = Ledger(workspace.ledger)
    (killed,) = ledger.read_all()

    left = [p.cmdline() for p in psutil.wait_procs(children, timeout=5)[1]]
    after = loop("run", "noop")

    assert [] == left
    assert ("running", ["A1"]) == (killed.status, [session.label for session in killed.sessions])
    assert 0 == after.returncode, after.stderr
    assert f"{killed.id} was killed after 1 session; closed it" in after.stderr
    first, second = ledger.read_all()
    assert first.failure is not None
    assert "killed" == first.failure.kind
    assert second.verdict is not None
    assert 2 == ledger.verify()


def test_the_version_is_one_line(loop_process: Process) -> None:
    """As the package says it."""
    done = loop_process("--version")

    assert (0, f"loop {__version__}\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", [("plan", "noop"), ("report",), ("ledger", "list"), ("--help",), ("run",)])
def test_no_color_sends_words_only(loop_process: Process, arguments: tuple[str, ...]) -> None:
    """Whatever a surrounding tool forces, a pipe gets no escape sequence."""
    done = loop_process(*arguments, env={"NO_COLOR": "1", "FORCE_COLOR": "1"})

    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(("no_color", "styled"), [("", True), ("1", False)])
@pytest.mark.parametrize("arguments", [("plan", "noop"), ("--help",)])
def test_no_color_holds_on_a_terminal(
    workspace: Workspace, arguments: tuple[str, ...], no_color: str, *, styled: bool
) -> None:
    """Neither colour nor bold; without NO_COLOR there is some."""
    reader, terminal = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": no_color}
    command = [sys.executable, "-m", "loop", *arguments]
    with subprocess.Popen(command, cwd=workspace.root, env=env, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that its last writer is gone
            while part := os.read(reader, 4096):
                shown += part
    os.close(reader)

    assert 0 == process.returncode, shown
    assert styled == (b"\x1b[" in shown)


def test_a_bundle_where_promoted_content_lies_is_refused(loop: Loop, workspace: Workspace) -> None:
    """`shipped` means what production serves; a bundle of that name would never be read."""
    path = workspace.candidates / "shipped" / "bundle.toml"
    path.parent.mkdir()
    path.write_text('schema = "loop.bundle/1"\nhypothesis = "mine"\n')

    done = loop("validate", "shipped")

    assert 2 == done.returncode
    assert f"{path} is no bundle: 'shipped' is a reserved name" in done.stderr
    assert "next: move bundle.toml" in done.stderr


def test_a_broken_toml_names_its_line(loop: Loop, workspace: Workspace) -> None:
    """Whichever file it is; the next step does not presume a bundle."""
    (workspace.root / "loop.toml").write_text("schema = \n")

    done = loop("report")

    assert 2 == done.returncode
    assert "loop.toml is not valid TOML" in done.stderr
    assert "next: mend the file, then repeat the command" in done.stderr


@pytest.mark.parametrize(
    ("outcome", "reason", "protocol", "argv", "command"),
    [
        ("improved", "measured", "aba", ("run", "b"), "loop confirm R000001-0000"),
        ("regressed", "measured", "aba", ("run", "b"), "loop report R000001-0000"),
        ("invalid", "baseline_crashed", "aba", ("run", "b"), "loop report R000001-0000"),
        ("invalid", "drift", "aba", ("run", "b"), "loop run b --protocol ababa"),
        ("inconclusive", "measured", "ababa", ("run", "b", "--protocol", "ababa"), "loop report R000001-0000"),
        (
            "inconclusive",
            "measured",
            "abba",
            ("run", "b", "--suite", "smoke", "--protocol", "abba", "--model", "a b"),
            "loop run b --suite smoke --model 'a b' --protocol ababa",
        ),
        ("inconclusive", "measured", "abba", ("run", "--protocol=abba", "b"), "loop run b --protocol ababa"),
    ],
)
def test_the_next_command_fits_the_verdict(
    outcome: str, reason: str, protocol: str, argv: tuple[str, ...], command: str
) -> None:
    """More sessions help against noise only, and the options that were given stay."""
    verdict = {"outcome": outcome, "reason": reason, "refused_by": (), "text": "x"}
    closed = stored_round("R000001-0000").model_copy(
        update={"verdict": Verdict.model_validate(verdict), "protocol": protocol, "argv": argv}
    )

    assert command == next_command(closed)


def test_help_imports_nothing_heavy() -> None:
    """`loop --help` must answer at once: what is heavy waits for the command that needs it."""
    program = (
        "import sys, loop.cli;"
        "print([m for m in ('torch', 'sglang', 'pandas', 'scipy', 'httpx', 'rich.live', 'tokenizers', 'numpy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def test_every_command_has_help() -> None:
    """Also for the commands below `ledger`."""
    from typer.main import get_command

    from loop.cli import app

    def walk(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        assert command.help, path
        below = getattr(command, "commands", {})
        return [path, *(found for name, child in below.items() for found in walk(child, (*path, name)))]

    assert {"run", "promote", "report", "ledger", "plan"} <= {path[0] for path in walk(get_command(app), ()) if path}


def test_no_process_of_the_tests_is_left() -> None:
    """The suite cleans up after itself: nothing marked by a round of this file is alive."""
    mine = psutil.Process().children(recursive=True)

    assert [] == [p for p in mine if "loop.fake_server" in " ".join(p.cmdline())]


@pytest.mark.xdist_group("noop")
def test_a_reader_may_stop_reading(noop: tuple[Workspace, Round]) -> None:
    """`loop report | head` is no failure of `loop`."""
    command = f"set -o pipefail; {sys.executable} -m loop report | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=noop[0].root, capture_output=True, text=True, check=False)

    assert (0, "shipped: nothing; the original is served\n", "") == (done.returncode, done.stdout, done.stderr)
