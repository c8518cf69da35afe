"""When each token leaves.

The schedule is absolute: the first token is due `ttft_s` after the request was received (or admitted, if it queued),
every other one `tpot_s` after the one before was *due*, so lateness never adds up. Chunks that are due by now leave at
once, one by one. A chunk of several tokens is due when its last token is.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from time import monotonic

from loop.clock import Clock
from loop.fake_server.delays import Delays
from loop.fake_server.formats import Format, Times
from loop.fake_server.plans import Plan, abort_finish
from loop.fake_server.scheduler import Scheduler
from loop.fake_server.wire import DONE, Wire

LOG = logging.getLogger(__name__)
KILLED_RC = 137


@dataclass(frozen=True, slots=True)
class Pace:
    """What every stream of a server shares."""

    clock: Clock
    scheduler: Scheduler
    delays: Delays


class Stream:
    """One running request. Without a wire nothing is sent until the end, on the same schedule."""

    def __init__(self, plan: Plan, form: Format, wire: Wire | None, pace: Pace, times: Times, start_s: float) -> None:
        self.plan = plan
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed = False
        self._form = form
        self._wire = wire
        self._clock = pace.clock
        self._scheduler = pace.scheduler
        self._load_factor = pace.delays.load_factor
        self._times = times
        self._due_s = start_s + plan.ttft_s
        self._num_next = 0

    def start(self) -> None:
        """Set the clock. The tokens that follow the first one in the first chunk take their time too."""
        self._scheduler.running[self.plan.order.rid] = self
        self._schedule(self.plan.first_chunk_tokens)
        self._due_s += max(0, self._num_next - 1) * self._token_s()
        self._clock.call_at(self._due_s, self._begin)

    def abort(self, message: str) -> None:
        """End now, with what has been sent."""
        if self.ended.done():
            return
        self._scheduler.num_aborted += 1
        self.plan.finish = abort_finish(message)
        del self.plan.tokens[self._form.count :]
        if self._wire is None or not self._wire.closed:
            self._emit(0, monotonic(), last=True)

    def close(self) -> None:
        """The handler is done with it, for whatever reason; the clock's next call finds it ended."""
        self.ended.cancel()
        self._scheduler.running.pop(self.plan.order.rid, None)

    def _begin(self, now: float) -> None:
        plan = self.plan
        if plan.load_edits and self._scheduler.num_running > 1:
            for edit in plan.load_edits:
                edit(plan)
            self._schedule(self._num_next)
        self._step(now)

    def _step(self, now: float) -> None:
        if self.ended.done() or (self._wire is not None and self._wire.closed):
            return
        plan, form = self.plan, self._form
        while self._due_s <= now:
            if form.count == plan.break_at:
                self._break()
                return
            last = form.count + self._num_next >= len(plan.tokens)
            self._emit(self._num_next, now, last=last)
            if last:
                return
            self._schedule(plan.chunk_tokens)
            self._due_s += max(1, self._num_next) * self._token_s()
        self._clock.call_at(self._due_s, self._step)

    def _schedule(self, num_tokens: int) -> None:
        """The next chunk: it ends at the latest where the answer ends or breaks."""
        plan = self.plan
        limit = len(plan.tokens) if plan.break_at is None else min(len(plan.tokens), plan.break_at)
        self._num_next = max(0, min(num_tokens, limit - self._form.count))

    def _token_s(self) -> float:
        return self.plan.tpot_s * self._load_factor(self._scheduler.num_running)

    def _emit(self, num_tokens: int, now: float, *, last: bool) -> None:
        form, wire, count = self._form, self._wire, self._form.count
        if count == 0:
            self._times.first_token_s = now - self._times.received_s
        if last:
            self._times.ended_s = now - self._times.received_s
        if wire is None:
            form.count += num_tokens
        else:
            if count == 0 and (opening := form.opening()):
                wire.send(opening)
            if self.plan.empty_chunks:
                wire.send(form.chunk((), last=False))
            wire.send(form.chunk(self.plan.tokens[count : count + num_tokens], last=last))
            if last and (closing := form.closing()):
                wire.send(closing)
        self._scheduler.num_generated_tokens += num_tokens
        if self._scheduler.on_step is not None:
            self._scheduler.on_step(count == 0)
        if last:
            self._end()

    def _end(self) -> None:
        if self._wire is not None:
            if self.plan.done_marker:
                self._wire.send(DONE)
            self._wire.flush()
        self.ended.set_result(None)

    def _break(self) -> None:
        if self.plan.breakage == "die":
            LOG.error("Subprocess scheduler_0 (pid=%d) crashed with exit code -9. Triggering SIGQUIT...", os.getpid())
            os._exit(KILLED_RC)
        if self.plan.breakage == "hang":
            return  # only the client or the server's end can end it now
        self.failed = True
        if self._wire is not None:
            self._wire.send(b"data: " + self._form.error("injected by the fault 'inband_error'", 500) + b"\n\n")
        self._end()
