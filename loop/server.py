"""One running server: launched through `launch_server.sh` in a session of its own, until its port is closed again."""

import contextlib
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from loop import orphans
from loop.engines import Engine
from loop.errors import ServerError
from loop.heldback import ROOT
from loop.host import MARK, end_processes, marked_processes, port_open, refuse_occupied
from loop.record import Record
from loop.watch import Watcher

STOP_GRACE_S = 30.0
"""SGLang stops within a second of SIGINT when idle; what needs longer is hanging."""
POLL_S = 0.05
TAIL_LINES = 50
ANSWERED = ("length_mismatch", "prompt_mismatch")
"""Failures of a server that is alive and answers wrongly: who does so is for the gates to refuse."""


class Exit(Record):
    """How a server ended."""

    returncode: int | None
    """None if it could not be made to end."""
    stop_s: float
    killed: bool
    """It did not end on SIGINT and was killed with its group."""
    survivors: tuple[str, ...]
    """Processes that outlived it, detached from its group; they were killed."""
    port_closed: bool
    died: bool = False
    """It had ended before it was asked to."""

    @property
    def left_something(self) -> bool:
        """A process or an open port was in the next session's way."""
        return bool(self.survivors) or not self.port_closed

    @property
    def clean(self) -> bool:
        """It ended when it was asked to and left nothing behind."""
        return not (self.died or self.killed or self.left_something)

    @property
    def how(self) -> str:
        """`clean`, `killed`, `died with exit code 1`, `died of SIGSEGV`; and whether it left something."""
        ended = _death(self.returncode) if self.died else "killed" if self.killed else ""
        left = "left something" if self.left_something else ""
        return ", ".join(filter(None, (ended, left))) or "clean"


class Server:
    """A context manager: the server runs inside it and nothing of it is left after."""

    def __init__(
        self, engine: Engine, *, launcher: Path, bundle: Path, model: Path, port: int, mark: str, log: Path
    ) -> None:
        self.engine = engine
        self.port = port
        self.log = log
        self.exit: Exit | None = None
        self._mark = mark
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != ROOT},
            "PORT": str(port),
            "HOST": "127.0.0.1",
            "MODEL_PATH": str(model),
            "LOOP_BUNDLE": str(bundle.resolve()),
            "LOOP_PYTHON": engine.python,
            "LOOP_DIE_WITH_PARENT": "1",
            MARK: mark,
        }
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._before: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        refuse_occupied(self.port)
        orphans.adopt()
        self._before = orphans.descendants()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", str(self._launcher)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.exit is None:
            self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that was launched."""
        assert self._process is not None
        return self._process.pid

    def wait_ready(self, timeout_s: float, watcher: Watcher) -> dict[str, Any]:
        """Wait for the log line, a healthy answer and `/server_info`, which is returned. Raises ServerError."""
        deadline = time.monotonic() + timeout_s
        with self._control() as http:
            while not (self._announced(watcher) and self._answers(http, deadline)):
                self._refuse_dead("start")
                if time.monotonic() > deadline:
                    raise self._error(f"was not ready within {timeout_s:.0f} s", "start")
                time.sleep(POLL_S)
            info = http.get(self.engine.info_path)
        if info.status_code != 200:
            raise self._error(f"answered {self.engine.info_path} with HTTP {info.status_code}", "start")
        self._refuse_dead("start")
        document: dict[str, Any] = info.json()
        return document

    def read_info(self) -> dict[str, Any]:
        """What it says of itself now, between two steps; raises ServerError if it does not answer."""
        with self._control() as http:
            try:
                answer = http.get(self.engine.info_path)
                answer.raise_for_status()
                document: dict[str, Any] = answer.json()
            except (httpx.HTTPError, ValueError) as problem:
                self._refuse_dead("traffic")
                raise self._error(f"did not answer {self.engine.info_path}: {problem}", "traffic") from None
        return document

    def flush(self) -> None:
        """Empty the prefix cache; raises ServerError unless the server confirms it (it refuses while busy)."""
        with self._control() as http:
            try:
                answer = http.post(self.engine.flush_path, params={"timeout": 30})
            except httpx.HTTPError as problem:
                self._refuse_dead("traffic")
                raise self._error(f"did not answer {self.engine.flush_path}: {problem}", "traffic") from None
        if answer.status_code != 200:
            raise self._error(f"refused to flush its cache: HTTP {answer.status_code} {answer.text[:200]}", "flush")

    def refuse_dead(self) -> None:
        """Raise ServerError if the server is no longer running."""
        self._refuse_dead("traffic")

    def refuse_silent(self, num_requests: int, failures: Mapping[str, int]) -> None:
        """Raise ServerError if it is dead, or answered none of these requests; `failures` counts them by kind."""
        self.refuse_dead()
        unanswered = {kind: count for kind, count in failures.items() if kind not in ANSWERED}
        if sum(unanswered.values()) < num_requests:
            return
        kind, count = max(unanswered.items(), key=lambda item: item[1])
        raise self._error(f"answered none of {num_requests} requests: {count} failed with {kind}", "traffic")

    def stop(self) -> Exit:
        """SIGINT, then the group, then whatever carries its mark or was left to us; proves the port closed."""
        process = self._process
        assert process is not None
        started = time.monotonic()
        killed = False
        died = process.poll() is not None
        if not died:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                killed = True
        # The group first: children that died with their parent are not survivors.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        survivors = self._survivors(process.pid)
        described = tuple(map(_describe, survivors))
        end_processes(survivors, grace_s=10)
        self.exit = Exit(
            returncode=process.poll(),
            stop_s=time.monotonic() - started,
            killed=killed,
            survivors=described,
            port_closed=not port_open(self.port),
            died=died,
        )
        return self.exit

    def log_tail(self, num_lines: int = TAIL_LINES) -> str:
        """The last lines it printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 64 * 1024))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-num_lines:])

    def _survivors(self, group: int) -> list[psutil.Process]:
        """What is left of it outside the group that was just killed, after a moment for the kernel to reap that."""
        deadline = time.monotonic() + 2
        while True:
            left = [*marked_processes(self._mark), *orphans.strays(self._before)]
            alive = list({process.pid: process for process in left}.values())
            if not alive or time.monotonic() > deadline:
                return [process for process in alive if process.pid != group]
            if all(_session_of(process) != group for process in alive):
                return alive
            time.sleep(POLL_S)

    def _announced(self, watcher: Watcher) -> bool:
        tail = self.log_tail(num_lines=200)
        last = tail.rpartition("\n")[2]
        if last:
            watcher.log(last)
        return self.engine.ready_line in tail

    def _answers(self, http: httpx.Client, deadline: float) -> bool:
        left_s = max(1.0, deadline - time.monotonic())
        try:
            return http.get(self.engine.health_path, timeout=left_s).status_code == 200
        except httpx.HTTPError:
            return False

    def _refuse_dead(self, stage: str) -> None:
        assert self._process is not None
        returncode = self._process.poll()
        if returncode is not None:
            raise self._error(f"ended with exit code {returncode}", stage)

    def _error(self, what: str, stage: str) -> ServerError:
        return ServerError(
            f"the {self.engine.name} server of {self._mark} {what}",
            stage=stage,
            log_tail=self.log_tail(),
            next=f"read {self.log}",
        )

    def _control(self) -> httpx.Client:
        # Loopback speaks no TLS; loading the certificate store would cost every call 60 ms.
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=bare)


def _death(returncode: int | None) -> str:
    """How a process ended that nobody asked to."""
    if returncode is None or returncode >= 0:
        return f"died with exit code {returncode}"
    try:
        return f"died of {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal has no name
        return f"died of signal {-returncode}"


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)
