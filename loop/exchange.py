"""One request on its way, and what came of it: success needs 200, no error, an end, a reason, and exact counts."""

import asyncio
import time

import orjson

from loop.connection import Connection
from loop.dialects import Dialect, Request
from loop.replies import Reply
from loop.response import Response
from loop.wording import count


class Exchange:
    """A request that is serialized before the clock starts, and the times of its life (`perf_counter_ns`)."""

    def __init__(self, request: Request, dialect: Dialect, *, host: str, scheduled_ns: int | None) -> None:
        self.request = request
        self.response = Response(dialect)
        self.scheduled_ns = scheduled_ns
        """From the start of the step; None in a closed loop."""
        self._sent_ns: int | None = None
        self._done_ns: int | None = None
        body = orjson.dumps(dialect.body(request))
        head = (
            f"POST {dialect.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._bytes = head.encode() + body

    def send_on(self, connection: Connection) -> asyncio.Future[None]:
        """Write it to an open connection; the future resolves at its end."""
        self._sent_ns = time.perf_counter_ns()
        return connection.send(self._bytes, self.response)

    def end(self) -> None:
        """The response is over, or there will be none."""
        self._done_ns = time.perf_counter_ns()

    def reply(self, epoch_ns: int) -> Reply:
        """The reply, judged, with times since the start of the step at `epoch_ns`. All that was read is understood."""
        self.response.finish()
        self._judge()
        dialect = self.response.dialect
        sent_ns, first_ns, last_ns, done_ns = (
            None if at_ns is None else at_ns - epoch_ns
            for at_ns in (self._sent_ns, dialect.first_ns, dialect.last_ns, self._done_ns)
        )
        return Reply(
            rid=self.request.rid,
            scheduled_ns=self.scheduled_ns,
            sent_ns=sent_ns,
            first_ns=first_ns,
            last_ns=last_ns,
            done_ns=done_ns,
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

    def _judge(self) -> None:
        """Whatever is missing or inexact is a failure; the first one stands."""
        dialect, request = self.response.dialect, self.request
        num_tokens, num_prompt = dialect.num_tokens, dialect.num_prompt_tokens
        if dialect.failure:
            return
        if not dialect.ended:
            dialect.fail("no_end_marker", "the stream ended without [DONE]")
        elif dialect.finish_reason == "abort":
            dialect.fail("aborted", "the server aborted the request")
        elif not dialect.finish_reason or num_tokens == 0:
            dialect.fail("truncated", f"{count(num_tokens or 0, 'token')} and no finish reason")
        elif num_tokens is None or num_prompt is None:
            dialect.fail("no_usage", "the server did not count its tokens, so nobody knows what it did")
        elif request.ignore_eos and num_tokens != request.max_new_tokens:
            dialect.fail("length_mismatch", f"{num_tokens} of {count(request.max_new_tokens, 'token')}")
        elif not dialect.saw_all_of(request, num_prompt):
            dialect.fail("prompt_mismatch", f"{num_prompt} of {len(request.input_ids)} prompt tokens")
