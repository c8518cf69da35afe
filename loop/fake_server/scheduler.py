"""Which requests run, which wait, and what the server counts."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol

LOG = logging.getLogger(__name__)
_REPORT_EVERY_S = 1.0


class Abortable(Protocol):
    """A running request."""

    def abort(self, message: str) -> None:
        """End early with `message` in the finish reason; does nothing once it has ended."""


class Scheduler:
    """First come, first served, `max_running` at a time."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self.num_requests = 0
        self.num_running = 0
        self.running: dict[str, Abortable] = {}
        self.queue: deque[asyncio.Future[None]] = deque()
        self.num_prompt_tokens = self.num_cached_tokens = self.num_generated_tokens = 0
        self.num_aborted = 0
        self.throughput = 0.0
        """Tokens per second in the last second that had traffic."""
        self.on_step: Callable[[bool], None] | None = None
        """Hears of every chunk that leaves, and whether it is an answer's first."""
        """Called for every chunk while a profile is being taken."""
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._reported_tokens = 0

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits."""
        return not self.num_running and not self.queue

    async def admit(self) -> bool:
        """Returns when the request may run, and whether it had to wait; the caller owes one `release`."""
        if self.num_running < self.max_running and not self.queue:
            self.num_running += 1
            return False
        turn = asyncio.get_running_loop().create_future()
        self.queue.append(turn)
        try:
            await turn  # `release` hands its place over, so the count is right already
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise
        return True

    def release(self) -> None:
        """A request has ended: its place goes to the next in the queue that still waits."""
        while self.queue:
            turn = self.queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.num_running -= 1
        if self.idle:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether the server is idle within the time."""
        if self.idle or timeout_s <= 0:
            return self.idle
        waiter = asyncio.get_running_loop().create_future()
        self._idle_waiters.append(waiter)
        await asyncio.wait([waiter], timeout=timeout_s)
        return self.idle

    def abort(self, rid: str, *, everything: bool) -> None:
        """A rid aborts every running request it is a prefix of, as in SGLang; an empty one aborts nothing."""
        for running_rid, stream in list(self.running.items()):
            if everything or (rid and running_rid.startswith(rid)):
                stream.abort("Abort by /abort_request")

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """A prefill has begun."""
        self.num_prompt_tokens += num_tokens
        self.num_cached_tokens += num_cached
        LOG.info(
            "Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: %d, token usage: 0.00, "
            "#running-req: %d, #queue-req: %d, ",
            num_tokens - num_cached,
            num_cached,
            self.num_running - 1,
            len(self.queue),
        )

    async def report(self) -> None:
        """Log and update the throughput every second that has traffic; never returns."""
        began_s = monotonic()
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            now_s = monotonic()
            if self.num_generated_tokens > self._reported_tokens:
                self._report(now_s - began_s)
            began_s = now_s

    def _report(self, elapsed_s: float) -> None:
        self.throughput = (self.num_generated_tokens - self._reported_tokens) / elapsed_s
        self._reported_tokens = self.num_generated_tokens
        LOG.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: 0.00, cuda graph: False, "
            "gen throughput (token/s): %.2f, #queue-req: %d",
            self.num_running,
            self.num_prompt_tokens + self.num_generated_tokens,
            self.throughput,
            len(self.queue),
        )
