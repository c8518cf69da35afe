"""The `loop` command as a person meets it: messages, exit codes, JSON, interruption and sudden death."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loop.host import marked_processes
from loop.ledger import Ledger, Round
from loop.workspace import Workspace

Loop = Callable[..., subprocess.CompletedProcess[str]]
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


def test_an_unknown_bundle_is_named_with_the_known_ones(loop: Loop) -> None:
    """A typo costs a second."""
    done = loop("run", "nosuch")

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
    command = [sys.executable, "-m", "loop", "plan", "noop"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert 2 == done.returncode
    assert "no loop.toml" in done.stderr
    assert "loop init DIR" in done.stderr


def test_a_round_as_json_is_one_document_on_stdout(loop: Loop) -> None:
    """Progress goes to stderr, as plain lines where there is no terminal."""
    done = loop("run", "noop", "--json", "--exit-code")

    round_ = json.loads(done.stdout)
    assert 10 == done.returncode
    assert "loop.round/1" == round_["schema"]
    assert "closed" == round_["status"]
    assert "session A1 (1 of 3): original" in done.stderr


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
        done = subprocess.run(
            [sys.executable, "-m", "loop", *arguments],
            cwd=workspace.root,
            env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert round_.id in read("ledger", "list")
    assert round_.id == json.loads(read("ledger", "list", "--json"))[0]["id"]
    assert "no_change (identical)" in read("ledger", "show", "1")
    assert f"# {round_.id}: noop against original" in read("report", "R000001")
    assert "shipped: nothing" in read("report")
    assert {"no_change": 1} == json.loads(read("report", "--json"))["summary"]["outcomes"]
    assert "the judgement is the same" in read("judge", "1")
    assert "1 rounds chained, none changed" in read("ledger", "verify")
    assert all(len(line) <= 80 for line in read("ledger", "show", "1").splitlines())


@pytest.mark.xdist_group("won")
def test_promoting_and_rolling_back(won: Workspace, tmp_path: Path) -> None:
    """The preview, the pointer, and back."""
    shutil.copytree(won.root, tmp_path / "copy")

    def loop(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "loop", *arguments]
        return subprocess.run(command, cwd=tmp_path / "copy", capture_output=True, text=True, check=True)

    rehearsed = loop("promote", "1", "--dry-run")
    promoted = loop("promote", "1")
    rolled_back = loop("promote", "--rollback")

    assert "+--tpot-ms 3.0" in rehearsed.stdout
    assert "shipped: nothing" in rehearsed.stdout
    assert "shipped on cpu: fast" in promoted.stdout
    assert "shipped: nothing" in rolled_back.stdout


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
        process.kill()
        process.communicate()
    ledger = Ledger(workspace.ledger)
    (killed,) = ledger.read_all()
    deadline = time.monotonic() + 5
    while list(marked_processes(killed.id)) and time.monotonic() < deadline:
        time.sleep(0.05)

    left = [p.cmdline() for p in marked_processes(killed.id)]
    after = loop("run", "noop")

    assert [] == left
    assert ("running", ["A1"]) == (killed.status, [session.label for session in killed.sessions])
    assert 0 == after.returncode, after.stderr
    assert f"{killed.id} was killed after 1 sessions; closed it" in after.stderr
    first, second = ledger.read_all()
    assert first.failure is not None
    assert "killed" == first.failure.kind
    assert second.verdict is not None
    assert 2 == ledger.verify()


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
