"""One server: started through the launcher, known to be ready, and gone afterwards."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop.engines.fake import Fake
from loop.errors import ServerError, UnfitError
from loop.heldback import ROOT
from loop.host import free_port, marked_processes, port_open
from loop.orphans import strays
from loop.plan import load_effective
from loop.server import Server
from loop.watch import Watcher
from loop.workspace import Workspace
from tests.brackets import CLEAN

Write = Callable[..., str]


@pytest.fixture
def server(workspace: Workspace, model: Path, write_bundle: Write, tmp_path: Path) -> Callable[..., Server]:
    """A function that prepares a server of a bundle with these faults."""

    def prepare(*faults: str, port: int | None = None, **args: object) -> Server:
        write_bundle("tried", args={**args, **({"fault": list(faults)} if faults else {})})
        engine = Fake(python=sys.executable)
        _, effective, _ = load_effective(workspace, engine, "tried", "cpu")
        effective.write(tmp_path / "bundle")
        return Server(
            engine,
            launcher=workspace.launcher,
            bundle=tmp_path / "bundle",
            model=model,
            port=port or free_port(),
            mark=f"test-{tmp_path.name}/B",
            log=tmp_path / "server.log",
        )

    return prepare


def test_a_ready_server_reports_the_configuration_it_resolved(server: Callable[..., Server]) -> None:
    """The settings come from the server that was started, not from a file."""
    with server(inert_number=4) as running:
        info = running.wait_ready(10, Watcher())

    assert 4 == info["inert_number"]
    assert running.port == info["port"]


def test_nothing_is_left_of_a_stopped_server(server: Callable[..., Server]) -> None:
    """Its port is closed, and no process carries its mark."""
    with server() as running:
        running.wait_ready(10, Watcher())

    assert running.exit is not None
    assert running.exit.clean
    assert 0 == running.exit.returncode
    assert not port_open(running.port)
    assert [] == list(marked_processes(running._mark))


def test_an_occupied_port_is_refused_before_anything_starts(server: Callable[..., Server]) -> None:
    """The client would measure the server that is there already."""
    with server() as first:
        first.wait_ready(10, Watcher())

        with pytest.raises(UnfitError, match=f"port {first.port} is in use"), server(port=first.port):
            pass


def test_a_server_that_dies_at_start_says_so_with_its_last_lines(server: Callable[..., Server]) -> None:
    """A person should not have to look for the log."""
    with server("die_at_start") as running, pytest.raises(ServerError) as caught:
        running.wait_ready(10, Watcher())

    assert "ended with exit code 1" in str(caught.value)
    assert "Traceback" in caught.value.log_tail
    assert "start" == caught.value.stage
    assert running.exit is not None
    assert (True, False, "died with exit code 1") == (running.exit.died, running.exit.clean, running.exit.how)


def test_a_server_that_never_gets_ready_is_given_up(server: Callable[..., Server]) -> None:
    """After the time limit, and it is stopped all the same."""
    with server("hang_at_start") as running, pytest.raises(ServerError, match="not ready within 1 s"):
        running.wait_ready(1, Watcher())

    assert running.exit is not None
    assert running.exit.clean


def test_a_server_that_ignores_signals_is_killed(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGINT first, then the group."""
    monkeypatch.setattr("loop.server.STOP_GRACE_S", 0.5)
    with server("hang_at_stop") as running:
        running.wait_ready(10, Watcher())

    assert running.exit is not None
    assert running.exit.killed
    assert (False, "killed") == (running.exit.clean, running.exit.how)
    assert -signal.SIGKILL == running.exit.returncode


def test_a_detached_process_is_found_by_its_mark_and_ended(server: Callable[..., Server]) -> None:
    """A new session does not hide it: the mark is in its environment."""
    with server("orphan") as running:
        running.wait_ready(10, Watcher())

    assert running.exit is not None
    assert 1 == len(running.exit.survivors)
    assert [] == list(marked_processes(running._mark))


def test_a_detached_process_that_dropped_its_mark_is_found_as_an_orphan_and_ended(
    server: Callable[..., Server],
) -> None:
    """The kernel gives it to us when the server is gone."""
    with server("hidden_orphan") as running:
        running.wait_ready(10, Watcher())
        assert 1 == len(list(marked_processes(running._mark)))

    assert running.exit is not None
    assert 1 == len(running.exit.survivors)
    assert "loop-fake-server-orphan" in running.exit.survivors[0]
    assert [] == strays(running._before)


def test_the_root_of_held_back_prompts_never_reaches_a_server(
    server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else that is set does."""
    monkeypatch.setenv(ROOT, "a root that is long enough")
    monkeypatch.setenv("LOOP_TEST_OTHER", "other")
    with server() as running:
        running.wait_ready(10, Watcher())
        (process,) = marked_processes(running._mark)
        environ = process.environ()

    assert ("other", None) == (environ["LOOP_TEST_OTHER"], environ.get(ROOT))
    assert "a root that is long enough" not in str(environ)


def test_a_server_says_what_it_is_between_steps(server: Callable[..., Server]) -> None:
    """Its acceptance of drafts, for one; one that has died says nothing."""
    with server(tokens_per_chunk=3) as running:
        running.wait_ready(10, Watcher())
        assert 3.0 == running.engine.accept_length(running.read_info())
        running.stop()

        with pytest.raises(ServerError, match="ended with exit code 0"):
            running.read_info()


def test_a_detached_process_that_keeps_the_port_is_ended_too(server: Callable[..., Server]) -> None:
    """Otherwise the next session would be served by it."""
    with server("port_squatter") as running:
        running.wait_ready(10, Watcher())

    assert running.exit is not None
    assert running.exit.survivors
    assert not port_open(running.port)


def test_a_flush_that_is_refused_is_an_error(server: Callable[..., Server]) -> None:
    """HTTP 400 means the cache is in an unknown state."""
    with server("flush_refused") as running:
        running.wait_ready(10, Watcher())

        with pytest.raises(ServerError, match="refused to flush its cache: HTTP 400") as caught:
            running.flush()

    assert "flush" == caught.value.stage


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, "clean"),
        ({"killed": True, "returncode": -9}, "killed"),
        ({"died": True, "returncode": 3}, "died with exit code 3"),
        ({"died": True, "returncode": -signal.SIGSEGV}, "died of SIGSEGV"),
        ({"died": True, "returncode": -40}, "died of signal 40"),
        ({"port_closed": False}, "left something"),
        ({"died": True, "returncode": 1, "survivors": ("17 python",)}, "died with exit code 1, left something"),
    ],
)
def test_an_end_is_clean_only_if_nothing_can_be_said_against_it(fields: dict[str, Any], how: str) -> None:
    """A server that crashed or had to be killed did not end cleanly, however little it left behind."""
    end = CLEAN.model_copy(update=fields)

    assert (how, how == "clean") == (end.how, end.clean)


def test_requests_of_which_none_was_answered_are_an_error_that_names_the_commonest_failure(
    server: Callable[..., Server],
) -> None:
    """One success is enough to go on, and so is a wrong answer: that one is for the gates."""
    with server() as running:
        running.wait_ready(10, Watcher())
        running.refuse_silent(4, {"idle_timeout": 3})
        running.refuse_silent(4, {"idle_timeout": 3, "length_mismatch": 1})

        with pytest.raises(ServerError, match="answered none of 4 requests: 3 failed with idle_timeout") as caught:
            running.refuse_silent(4, {"connect": 1, "idle_timeout": 3})

    assert "traffic" == caught.value.stage


def test_the_server_dies_with_the_process_that_started_it(workspace: Workspace, model: Path, tmp_path: Path) -> None:
    """Also when that process is killed and cannot clean up."""
    import subprocess

    program = (
        "import sys, time; from pathlib import Path; from loop.engines.fake import Fake;"
        "from loop.plan import load_effective; from loop.server import Server; from loop.watch import Watcher;"
        "from loop.workspace import find_workspace; w = find_workspace(Path(sys.argv[1]));"
        "e = Fake(python=sys.executable);"
        "_, b, _ = load_effective(w, e, 'original', 'cpu'); b.write(Path(sys.argv[2]) / 'b');"
        "s = Server(e, launcher=w.launcher, bundle=Path(sys.argv[2]) / 'b', model=Path(sys.argv[3]),"
        " port=int(sys.argv[4]), mark='test-killed/A', log=Path(sys.argv[2]) / 'log'); s.__enter__();"
        "s.wait_ready(10, Watcher()); print('ready', flush=True); time.sleep(60)"
    )
    port = free_port()
    command = [sys.executable, "-c", program, str(workspace.root), str(tmp_path), str(model), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert "ready" == parent.stdout.readline().strip()
        assert port_open(port)
        parent.kill()

    deadline = time.monotonic() + 5
    while port_open(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not port_open(port)
