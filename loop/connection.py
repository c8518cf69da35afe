"""One raw HTTP/1.1 connection that streams responses into a backlog, over asyncio and llhttp."""

import asyncio
import time
from typing import Any

import httptools

from loop.backlog import Backlog
from loop.response import Response


class Connection(asyncio.Protocol):
    """One keep-alive connection; carries one response at a time. It finds out where a response ends, and no more."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self.on_body = backlog.keep
        """Takes a piece of the response body straight from llhttp: the most frequent call has no Python in it."""
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._response: Response | None = None
        self._done: asyncio.Future[None] | None = None
        self.last_read_ns = 0
        """`perf_counter_ns` of the last bytes, in or out: the time of their events, and the start of a silence."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a full Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """A response that is still open was reset."""
        if self._response is not None and self._done is not None and not self._done.done():
            self._response.fail("reset", f"the server closed the connection: {exc or 'end of file'}")
            self._done.set_result(None)
        self._transport = None

    @property
    def open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle_s(self) -> float:
        """Seconds since bytes went either way; 0 before the first."""
        return (time.perf_counter_ns() - self.last_read_ns) / 1e9 if self.last_read_ns else 0.0

    def send(self, request: bytes, response: Response) -> asyncio.Future[None]:
        """Write one request; the future resolves when its response has ended or the connection is lost."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._response = response
        self._done = asyncio.get_running_loop().create_future()
        self.last_read_ns = time.perf_counter_ns()
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        """Close at once, also in the middle of a response."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """One network read: its time is taken before anything else."""
        self.last_read_ns = at_ns = time.perf_counter_ns()
        response = self._response
        if response is None:
            return
        if response.too_large:
            self.close()
            return
        self._backlog.note(response, at_ns, len(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            response.fail("parse", str(problem))
            self.close()

    def on_headers_complete(self) -> None:
        """The status is known, from llhttp."""
        assert self._response is not None
        self._response.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        """The response has ended, from llhttp."""
        assert self._done is not None
        if not self._parser.should_keep_alive():
            self.close()
        if not self._done.done():
            self._done.set_result(None)
