"""A measurement: everything seen in one step, raw, per request, kept beside the round."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from loop.client import Job
from loop.client_report import ClientReport
from loop.dialects import Request
from loop.errors import InputError, LoopError
from loop.record import Record, sha256_of_file
from loop.replies import Reply, read_replies
from loop.schedule import Step
from loop.watch import Watcher

IDLE_TIMEOUT_S = 60.0
TOKENS_PER_S_FLOOR = 5.0
"""A request that is slower than this has failed: it bounds every step by the work that it asks for."""


class Artifact(Record):
    """A file of a round that is too large for its JSON, by path relative to the round's raw directory."""

    path: str
    sha256: str
    num_bytes: int


class Measurement(Record):
    """One step as it was seen. `raw` holds one reply per request."""

    step: Step
    started_utc: str
    num_requests: int
    failures: dict[str, int]
    """Kind of failure → count; empty when all succeeded."""
    num_prompt_tokens: int
    num_tokens: int
    num_cached_tokens: int
    client: ClientReport
    raw: Artifact


class ClientProcess:
    """The process that sends a session's traffic: started once, so that no step pays for imports."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loop.client"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if kind is not None:
            self._process.kill()
        with self._process as process:  # closes its pipes; an idle client ends at the end of its input
            assert process.stdin is not None
            process.stdin.close()

    def send(self, job: Path, replies: Path, watcher: Watcher) -> ClientReport:
        """Have the job sent and its replies written. Raises LoopError if the client itself fails."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps([str(job), str(replies)]), file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                document = json.loads(line)
                if "num_done" not in document:
                    return ClientReport.model_validate(document)
                watcher.traffic(document["num_done"], document["num_reads"])
        except (OSError, ValueError) as problem:
            raise LoopError(f"the client process failed: {problem}", next=f"read {self._log}") from None
        raise LoopError(
            f"the client process ended with exit code {self._process.wait(timeout=10)}", next=f"read {self._log}"
        )


def run_step(
    step: Step,
    requests: Sequence[Request],
    *,
    client: ClientProcess,
    concurrency: int,
    port: int,
    dialect: str,
    directory: Path,
    root: Path,
    watcher: Watcher,
    schedule_ns: tuple[int, ...] | None = None,
) -> Measurement:
    """Send `requests` from the client process and keep what came back in `directory`, below the round's `root`.

    They are due at `schedule_ns`, nanoseconds from the start; without one, `concurrency` are in flight.
    """
    expected_s = sum(request.max_new_tokens for request in requests) / TOKENS_PER_S_FLOOR / concurrency
    last_due_s = max(schedule_ns or (0,)) / 1e9
    job = Job(
        host="127.0.0.1",
        port=port,
        dialect=dialect,
        concurrency=concurrency,
        idle_timeout_s=IDLE_TIMEOUT_S,
        deadline_s=IDLE_TIMEOUT_S + last_due_s + expected_s,
        requests=tuple(requests),
        schedule_ns=schedule_ns,
    )
    directory.mkdir(parents=True, exist_ok=True)
    job_path = directory / f"{step.name}.job.json"
    replies_path = directory / f"{step.name}.jsonl.zst"
    job_path.write_text(job.model_dump_json())
    report = client.send(job_path, replies_path, watcher)
    replies = read_replies(replies_path)
    return Measurement(
        step=step,
        started_utc=datetime.fromtimestamp(report.started_at_ns / 1e9, UTC).isoformat().replace("+00:00", "Z"),
        num_requests=len(requests),
        failures=dict(Counter(reply.failure for reply in replies if reply.failure)),
        num_prompt_tokens=sum(reply.num_prompt_tokens or 0 for reply in replies),
        num_tokens=sum(reply.num_tokens or 0 for reply in replies),
        num_cached_tokens=sum(reply.num_cached_tokens or 0 for reply in replies),
        client=report,
        raw=keep(replies_path, root),
    )


def keep(path: Path, root: Path) -> Artifact:
    """A reference to a file under the round's raw directory `root`."""
    return Artifact(path=str(path.relative_to(root)), sha256=sha256_of_file(path), num_bytes=path.stat().st_size)


def read_artifact(artifact: Artifact, root: Path) -> tuple[Reply, ...]:
    """The replies in a stored file; raises LoopError if it is gone or does not hash to what the round recorded."""
    path = root / artifact.path
    if not path.is_file():
        raise InputError(f"{path} is missing: raw data stays on the machine that measured it")
    if sha256_of_file(path) != artifact.sha256:
        raise InputError(f"{path} does not hash to what the round recorded: it was changed")
    return read_replies(path)


def replies_of(measurement: Measurement, root: Path) -> tuple[Reply, ...]:
    """The replies of a stored measurement."""
    return read_artifact(measurement.raw, root)
