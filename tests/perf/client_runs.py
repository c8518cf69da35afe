"""One run of one client against one server, and what is kept of it."""

import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.perf.client_cpu import Meter
from tests.perf.client_load import FakeServer, Load, Prompts
from tests.perf.clients import Client, Task
from tests.perf.rivals import plain_environment

TIMEOUT_S = 120


@dataclass(frozen=True)
class Run:
    """What a client delivered, what it said, and what it cost."""

    client: str
    load: str
    tokens_per_s: float
    ttft_p50_ms: float
    tpot_p50_ms: float
    cpu_us_per_token: float
    client_cores: float
    server_cores: float


class RunFailed(Exception):
    """The client did not do what it was asked to."""


def run_client(
    client: Client, load: Load, server: FakeServer, prompts: Prompts, *, num_rounds: int, directory: Path
) -> Run:
    """Have the client send the load once, in a directory of its own below `directory`."""
    here = Path(tempfile.mkdtemp(dir=directory))
    task = Task(load, prompts, load.num_streams * num_rounds, server.port, here)
    before = server.counts()
    meter = start(client, task, server, before[0])
    requests, tokens = (now - then for now, then in zip(server.counts(), before, strict=True))
    if (requests, tokens) != (task.num_requests, task.num_tokens):
        raise RunFailed(f"{requests} requests and {tokens} tokens instead of {task.num_requests} and {task.num_tokens}")
    try:
        said = client.reported(task)
        client_cores, server_cores = meter.cores(said.duration_s)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as problem:
        raise RunFailed(f"its results cannot be read: {problem!r}") from problem
    if said.num_tokens != task.num_tokens:
        raise RunFailed(f"it counted {said.num_tokens} tokens, the server {task.num_tokens}")
    tokens_per_s = said.num_tokens / said.duration_s
    return Run(
        client=client.name,
        load=load.name,
        tokens_per_s=tokens_per_s,
        ttft_p50_ms=said.ttft_p50_ms,
        tpot_p50_ms=said.tpot_p50_ms,
        cpu_us_per_token=client_cores / tokens_per_s * 1e6,
        client_cores=client_cores,
        server_cores=server_cores,
    )


def start(client: Client, task: Task, server: FakeServer, num_requests_before: int) -> Meter:
    """Start the client and wait for its end; its output stays beside its results."""
    command = client.command(task)
    out, errors = task.directory / "stdout", task.directory / "stderr"
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            text=True,
            env=plain_environment() | client.environment,
            start_new_session=True,  # so that a client that hangs is ended with all its workers
        )
    meter = Meter(process.pid, server, num_requests_before)
    meter.start()
    try:
        process.communicate(client.standard_input(task), timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise RunFailed(f"it did not end within {TIMEOUT_S} s") from None
    finally:
        meter.stop()
    if process.returncode:
        raise RunFailed(f"exit code {process.returncode}: {errors.read_text()[-600:] or out.read_text()[-600:]}")
    return meter
