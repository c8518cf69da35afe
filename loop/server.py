"""One running server: launched through `launch_server.sh` in a session of its own, until its port is closed again."""

import contextlib
import os
import signal
import ssl
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from loop.engines import Engine
from loop.errors import ServerError
from loop.host import MARK, end_processes, marked_processes, port_open, refuse_occupied
from loop.record import Record
from loop.watch import Watcher

STOP_GRACE_S = 30.0
"""SGLang stops within a second of SIGINT when idle; what needs longer is hanging."""
POLL_S = 0.05
TAIL_LINES = 50


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

    @property
    def clean(self) -> bool:
        """Nothing was left behind."""
        return self.port_closed and not self.survivors


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
            **os.environ,
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

    def __enter__(self) -> Self:
        refuse_occupied(self.port)
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

    def flush(self) -> None:
        """Empty the prefix cache; raises ServerError unless the server confirms it (it refuses while busy)."""
        with self._control() as http:
            try:
                answer = http.post(self.engine.flush_path, params={"timeout": 30})
            except httpx.HTTPError as problem:
                self._refuse_dead("traffic")
                raise self._error(f"did not answer {self.engine.flush_path}: {problem}", "traffic") from None
        if answer.status_code != 200:
            raise self._error(f"refused to flush its cache: HTTP {answer.status_code} {answer.text[:200]}", "traffic")

    def refuse_dead(self) -> None:
        """Raise ServerError if the server is no longer running."""
        self._refuse_dead("traffic")

    def stop(self) -> Exit:
        """SIGINT, then the group, then whatever still carries its mark; proves the port closed."""
        process = self._process
        assert process is not None
        started = time.monotonic()
        killed = False
        if process.poll() is None:
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
        end_processes(survivors, grace_s=10)
        self.exit = Exit(
            returncode=process.poll(),
            stop_s=time.monotonic() - started,
            killed=killed,
            survivors=tuple(_describe(survivor) for survivor in survivors),
            port_closed=not port_open(self.port),
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
        """Marked processes outside the group that was just killed, after a moment for the kernel to reap it."""
        deadline = time.monotonic() + 2
        while True:
            alive = list(marked_processes(self._mark))
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
