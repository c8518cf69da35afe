"""One raw HTTP/1.1 connection that streams a response into a dialect, over asyncio and llhttp."""

import asyncio
import time
from typing import Any

import httptools

from loop.dialects import Dialect
from loop.stream import EventStream, EventTooLarge

MAX_SHOWN_BYTES = 400
"""Of the body of a refusal."""


class Connection(asyncio.Protocol):
    """One keep-alive connection; carries one response at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._stream = EventStream()
        self._dialect: Dialect | None = None
        self._done: asyncio.Future[None] | None = None
        self._plain = b""
        self._ok = False
        self.last_read_ns = 0
        """`perf_counter_ns` of the last bytes, in or out: the time of their events, and the start of a silence."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a full Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """A response that is still open was reset."""
        if self._dialect is not None and self._done is not None and not self._done.done():
            self._dialect.fail("reset", f"the server closed the connection: {exc or 'end of file'}")
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

    def send(self, head: bytes, body: bytes, dialect: Dialect) -> asyncio.Future[None]:
        """Write one request; the future resolves when its response has ended or the connection is lost."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._stream, self._dialect, self._plain, self._ok = EventStream(), dialect, b"", False
        self._done = asyncio.get_running_loop().create_future()
        self.last_read_ns = time.perf_counter_ns()
        self._transport.write(head + body)
        return self._done

    def close(self) -> None:
        """Close at once, also in the middle of a response."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """One network read: its time is taken before anything is understood."""
        self.last_read_ns = time.perf_counter_ns()
        if self._dialect is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, EventTooLarge) as problem:
            self._dialect.fail("parse", str(problem))
            self.close()

    def on_headers_complete(self) -> None:
        """The status is known, from llhttp."""
        self._ok = self._parser.get_status_code() == 200

    def on_body(self, body: bytes) -> None:
        """A piece of the response body, from llhttp."""
        dialect = self._dialect
        assert dialect is not None
        if not self._ok:
            self._plain = (self._plain + body)[:MAX_SHOWN_BYTES]
            return
        for data in self._stream.feed(body):
            dialect.event(self.last_read_ns, data)

    def on_message_complete(self) -> None:
        """The response has ended, from llhttp."""
        dialect, done = self._dialect, self._done
        assert dialect is not None
        assert done is not None
        if not self._ok:
            dialect.fail("http_status", f"HTTP {self._parser.get_status_code()}: {self._plain!r}")
        elif self._stream.unfinished:
            dialect.fail("truncated", "the stream ended in the middle of an event")
        if not self._parser.should_keep_alive():
            self.close()
        if not done.done():
            done.set_result(None)
