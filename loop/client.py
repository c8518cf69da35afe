"""The timed client: its own process, one raw connection per request in flight, opened before the clock starts.

`python -m loop.client` reads `[job path, replies path]` (JSON) a line from standard input. For each it sends the job's
requests closed-loop in order, writes one reply per request (zstd JSON lines), and prints a JSON line every half second
for the progress display and its report at the end.

It speaks HTTP/1.1 over asyncio and llhttp instead of an HTTP library because the library is what gets measured
otherwise: per streamed token httpx costs 100 µs of CPU, aiohttp 15 µs, this about 9 µs (docs/method.md).
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import uvloop

from loop.connection import Connection
from loop.dialects import DIALECTS, Dialect, Request
from loop.record import Record
from loop.replies import Reply, write_replies

LAG_PROBE_S = 0.01


class Job(Record):
    """What the client is asked to do."""

    host: str
    port: int
    dialect: str
    concurrency: int
    idle_timeout_s: float
    """A response with no bytes for this long has failed."""
    deadline_s: float
    """The whole job fails what is unfinished by then."""
    requests: tuple[Request, ...]


class ClientReport(Record):
    """What the client knows about itself: it must not be what is measured."""

    started_at_ns: int
    """Wall clock, for the record only."""
    wall_s: float
    cpu_s: float
    loop_lag_p99_ms: float | None
    num_connections: int


class Client:
    """Sends a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.num_done = 0
        self.num_tokens = 0
        self.num_connections = 0
        self._epoch_ns = 0
        self._lags: list[float] = []

    async def run(self) -> tuple[list[Reply], ClientReport]:
        """Every reply in the order of the job's requests, and the client's report about itself."""
        job = self.job
        prepared = [(request, *self._encode(request)) for request in job.requests]
        queue = iter(enumerate(prepared))
        replies: list[Reply | None] = [None] * len(prepared)
        num_streams = min(job.concurrency, len(prepared))
        connections = await asyncio.gather(*(self._connect() for _ in range(num_streams)))
        probe = asyncio.create_task(self._probe_lag())
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the timed window would be read as server latency
        started_at_ns = time.time_ns()
        cpu_before = time.process_time()
        start = time.perf_counter()
        self._epoch_ns = time.perf_counter_ns()
        deadline = start + job.deadline_s
        try:
            await asyncio.gather(*(self._serve(c, queue, replies, deadline) for c in connections))
        finally:
            probe.cancel()
            gc.enable()
        report = ClientReport(
            started_at_ns=started_at_ns,
            wall_s=time.perf_counter() - start,
            cpu_s=time.process_time() - cpu_before,
            loop_lag_p99_ms=_p99(self._lags),
            num_connections=self.num_connections,
        )
        return [reply for reply in replies if reply is not None], report

    def _encode(self, request: Request) -> tuple[bytes, bytes]:
        """Head and body, serialized before the clock starts."""
        dialect = DIALECTS[self.job.dialect]
        body = orjson.dumps(dialect.body(request))
        head = (
            f"POST {dialect.path} HTTP/1.1\r\nHost: {self.job.host}:{self.job.port}\r\n"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode(), body

    async def _connect(self) -> Connection | None:
        """A new connection, or None when the server does not accept one."""
        loop = asyncio.get_running_loop()
        try:
            connecting = loop.create_connection(Connection, self.job.host, self.job.port)
            _, connection = await asyncio.wait_for(connecting, timeout=10)
        except (OSError, TimeoutError):
            return None
        self.num_connections += 1
        return connection

    async def _serve(
        self,
        connection: Connection | None,
        queue: Iterator[tuple[int, tuple[Request, bytes, bytes]]],
        replies: list[Reply | None],
        deadline: float,
    ) -> None:
        """One stream of the closed loop: the next request is sent as soon as the last one has ended."""
        for index, (request, head, body) in queue:
            dialect = DIALECTS[self.job.dialect]()
            if connection is None or not connection.open:
                connection = await self._connect()
            sent_ns: int | None = None
            if connection is None:
                dialect.fail("connect", f"{self.job.host}:{self.job.port} refused a connection")
            else:
                sent_ns = time.perf_counter_ns()
                done = connection.send(head, body, dialect)
                await self._wait(connection, done, dialect, deadline)
            done_ns = time.perf_counter_ns()
            dialect.finish()
            replies[index] = _reply(request, dialect, self._epoch_ns, sent_ns, done_ns)
            self.num_done += 1
            self.num_tokens += dialect.num_tokens or 0

    async def _wait(
        self, connection: Connection, done: asyncio.Future[None], dialect: Dialect, deadline: float
    ) -> None:
        """Until the response ends, goes silent for too long, or the job's time is up."""
        while not done.done():
            left = deadline - time.perf_counter()
            silence_left = self.job.idle_timeout_s - (time.monotonic() - connection.last_read_s)
            if left <= 0:
                dialect.fail("deadline", f"unfinished after the step's {self.job.deadline_s:.0f} s")
            elif silence_left <= 0:
                dialect.fail("idle_timeout", f"no bytes for {self.job.idle_timeout_s:.0f} s")
            else:
                await asyncio.wait([done], timeout=min(left, silence_left))
                continue
            connection.close()
            return

    async def _probe_lag(self) -> None:
        """How late the event loop runs a timer: what every timestamp here may be late by."""
        while True:
            due = time.perf_counter() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._lags.append((time.perf_counter() - due) * 1e3)


def _reply(request: Request, dialect: Dialect, epoch_ns: int, sent_ns: int | None, done_ns: int) -> Reply:
    """The reply to `request`, judged: success needs 200, no error, an end, a reason, and exact counts."""

    def since(at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - epoch_ns

    if not dialect.failure:
        if not dialect.ended:
            dialect.fail("no_end_marker", "the stream ended without [DONE]")
        elif dialect.finish_reason == "abort":
            dialect.fail("aborted", "the server aborted the request")
        elif not dialect.finish_reason or not dialect.num_tokens:
            dialect.fail("truncated", f"{dialect.num_tokens or 0} tokens and no finish reason")
        elif request.ignore_eos and dialect.num_tokens != request.max_new_tokens:
            dialect.fail("length_mismatch", f"{dialect.num_tokens} of {request.max_new_tokens} tokens")
        elif dialect.num_prompt_tokens != len(request.input_ids):
            dialect.fail("prompt_mismatch", f"{dialect.num_prompt_tokens} of {len(request.input_ids)} prompt tokens")
    return Reply(
        rid=request.rid,
        sent_ns=since(sent_ns),
        first_ns=since(dialect.first_ns),
        last_ns=since(dialect.last_ns),
        done_ns=since(done_ns),
        num_prompt_tokens=dialect.num_prompt_tokens,
        num_tokens=dialect.num_tokens,
        num_first_tokens=dialect.num_first_tokens,
        num_cached_tokens=dialect.num_cached_tokens,
        num_chunks=dialect.num_chunks,
        finish_reason=dialect.finish_reason,
        server_e2e_s=dialect.server_e2e_s,
        text=dialect.text,
        output_ids=tuple(dialect.output_ids),
        failure=dialect.failure,
        error=dialect.error,
    )


def _p99(values: list[float]) -> float | None:
    return sorted(values)[int(len(values) * 0.99)] if values else None


async def _report_progress(client: Client) -> None:
    while True:
        await asyncio.sleep(0.5)
        print(orjson.dumps({"num_done": client.num_done, "num_tokens": client.num_tokens}).decode(), flush=True)


async def _send(job: Job, replies_path: Path) -> ClientReport:
    client = Client(job)
    progress = asyncio.create_task(_report_progress(client))
    replies, report = await client.run()
    progress.cancel()
    write_replies(replies_path, replies)
    return report


def main() -> None:
    """Send one job per line of standard input until it ends."""
    for line in sys.stdin:
        job, replies = map(Path, orjson.loads(line))
        report = uvloop.run(_send(Job.model_validate_json(job.read_bytes()), replies))
        print(report.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
