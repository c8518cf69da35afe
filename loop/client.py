"""The timed client: its own process, one raw connection per request in flight, opened before the clock starts.

`python -m loop.client` reads `[job path, replies path]` (JSON) a line from standard input. For each it sends the job's
requests, writes one reply per request (zstd JSON lines), and prints a JSON line every half second for the progress
display and its report at the end.

It speaks HTTP/1.1 over asyncio and llhttp instead of an HTTP library because the library is what gets measured
otherwise: per streamed token httpx costs 100 µs of CPU, aiohttp 15 µs or more, this little more than its kernel work
(docs/method.md). While traffic flows it notes times and bytes; what they mean is found out afterwards.
"""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import orjson
import uvloop
from pydantic import model_validator

from loop import dialects, plugins
from loop.backlog import Backlog
from loop.client_report import ClientReport, LagProbe, outside_server, p99, punctuality
from loop.clock import Clock
from loop.connection import Connection
from loop.descriptors import allow_many
from loop.dialects import Dialect, Request
from loop.exchange import Exchange
from loop.launch import die_with_parent
from loop.pool import Pool
from loop.record import Record
from loop.replies import Reply, write_replies
from loop.response import Response

PROGRESS_S = 0.5


class Job(Record):
    """What the client is asked to do."""

    host: str
    port: int
    dialect: str
    concurrency: int
    """Closed loop: exactly so many are in flight. Open loop: so many connections are opened before the clock starts."""
    idle_timeout_s: float
    """A response with no bytes for this long has failed."""
    deadline_s: float
    """The whole job fails what is unfinished by then."""
    requests: tuple[Request, ...]
    schedule_ns: tuple[int, ...] | None = None
    """Open loop: when each request is due, from the start of the step, whatever became of those before it."""

    @model_validator(mode="after")
    def _every_request_is_scheduled(self) -> "Job":
        if self.schedule_ns is not None and len(self.schedule_ns) != len(self.requests):
            raise ValueError(f"{len(self.schedule_ns)} times for {len(self.requests)} requests")
        return self


class Client:
    """Sends a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.num_done = 0
        self._backlog = Backlog()
        self._pool = Pool(job.host, job.port, self._backlog)
        self._deadline_s = 0.0
        kind = plugins.load(dialects, job.dialect, Dialect)
        self._exchanges = [
            Exchange(request, kind(), host=self._pool.name, scheduled_ns=due_ns)
            for request, due_ns in zip(job.requests, job.schedule_ns or [None] * len(job.requests), strict=True)
        ]

    @property
    def progress(self) -> dict[str, int]:
        """Requests that have ended, and network reads of all responses: tokens are not counted while traffic flows."""
        return {"num_done": self.num_done, "num_reads": self._backlog.num_reads}

    async def run(self) -> tuple[list[Reply], ClientReport]:
        """Every reply in the order of the job's requests, and the client's report about itself."""
        await self._pool.open(min(self.job.concurrency, len(self._exchanges)))
        num_before = self._pool.num_opened
        clock = Clock(asyncio.get_running_loop())
        probe = LagProbe(clock)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the timed window would be read as server latency
        started_at_ns = time.time_ns()
        cpu_before = time.process_time()
        epoch_ns = time.perf_counter_ns()
        start_s = time.monotonic()
        self._deadline_s = start_s + self.job.deadline_s
        probe.start()
        try:
            if self.job.schedule_ns is None:
                await self._closed_loop()
            else:
                await self._open_loop(clock, start_s)
            wall_s, cpu_s = time.monotonic() - start_s, time.process_time() - cpu_before
        finally:
            gc.enable()
            clock.close()
            self._pool.close()
        self._backlog.understand()
        replies = [exchange.reply(epoch_ns) for exchange in self._exchanges]
        outside_ms, outside_share = outside_server(replies)
        latencies = [reply.sent_to_last_ms for reply in replies if reply.sent_to_last_ms is not None]
        return replies, ClientReport(
            started_at_ns=started_at_ns,
            wall_s=wall_s,
            cpu_s=cpu_s,
            loop_lag_p99_ms=p99(probe.lags_ms),
            num_connections=self._pool.num_opened,
            num_late_connections=self._pool.num_opened - num_before,
            e2e_p50_ms=median(latencies) if latencies else None,
            outside_server_p50_ms=outside_ms,
            outside_server_p50_share=outside_share,
            punctuality=punctuality(replies),
        )

    async def _closed_loop(self) -> None:
        """So many streams: in each, the next request is sent as soon as the last one has ended."""
        queue = iter(self._exchanges)

        async def stream(queue: Iterator[Exchange]) -> None:
            for exchange in queue:
                await self._carry(exchange, self._pool.take())

        await asyncio.gather(*(stream(queue) for _ in range(min(self.job.concurrency, len(self._exchanges)))))

    async def _open_loop(self, clock: Clock, start_s: float) -> None:
        """Every request at its absolute time: lateness never adds up, and a slow server gets no less load."""
        loop = asyncio.get_running_loop()
        carried: list[asyncio.Task[None]] = []
        all_sent = loop.create_future()

        def launch(exchange: Exchange, _now_s: float) -> None:
            connection = self._pool.take()
            done = None if connection is None else exchange.send_on(connection)  # before anything else
            carried.append(loop.create_task(self._carry(exchange, connection, done)))
            if len(carried) == len(self._exchanges):
                all_sent.set_result(None)

        for exchange in self._exchanges:
            due_s = start_s + (exchange.scheduled_ns or 0) / 1e9
            clock.call_at(due_s, partial(launch, exchange))
        if self._exchanges:
            await all_sent
            await asyncio.gather(*carried)

    async def _carry(
        self, exchange: Exchange, connection: Connection | None, done: asyncio.Future[None] | None = None
    ) -> None:
        """See one request through, on a new connection if there is none; `done` if it is on its way already."""
        if connection is None:
            connection = await self._pool.connect()
        if connection is None:
            exchange.response.fail("connect", f"{self._pool.name} refused a connection")
        else:
            await self._wait(connection, done or exchange.send_on(connection), exchange.response)
            self._pool.give(connection)
        exchange.end()
        self.num_done += 1

    async def _wait(self, connection: Connection, done: asyncio.Future[None], response: Response) -> None:
        """Until the response ends, goes silent for too long, or the job's time is up."""
        while not done.done():
            left_s = self._deadline_s - time.monotonic()
            silence_left_s = self.job.idle_timeout_s - connection.idle_s
            if left_s <= 0:
                response.fail("deadline", f"unfinished after the step's {self.job.deadline_s:.0f} s")
            elif silence_left_s <= 0:
                response.fail("idle_timeout", f"no bytes for {self.job.idle_timeout_s:.0f} s")
            else:
                await asyncio.wait([done], timeout=min(left_s, silence_left_s))
                continue
            connection.close()
            return


async def _report_progress(client: Client) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        _print_progress(client)


def _print_progress(client: Client) -> None:
    print(orjson.dumps(client.progress).decode(), flush=True)


async def _send(job: Job, replies_path: Path) -> ClientReport:
    client = Client(job)
    progress = asyncio.create_task(_report_progress(client))
    replies, report = await client.run()
    progress.cancel()
    _print_progress(client)
    write_replies(replies_path, replies)
    return report


def main() -> None:
    """Send one job per line of standard input until it ends."""
    die_with_parent()  # a round that is killed must not leave its traffic running
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the round ends us when it ends
    allow_many()
    for line in sys.stdin:
        job, replies = map(Path, orjson.loads(line))
        report = uvloop.run(_send(Job.model_validate_json(job.read_bytes()), replies))
        print(report.model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
