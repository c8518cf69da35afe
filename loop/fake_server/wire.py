"""Events to network bytes, written straight to the transport.

The library's own way costs more than everything else the server does for a token.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from aiohttp import web

from loop.clock import Clock

DONE = b"data: [DONE]\n\n"
_SPLIT_PAUSE_S = 0.0003
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
    b"Server: loop-fake-server\r\n\r\n"
)


class EventStream(web.StreamResponse):
    """A response whose head and end are constant bytes; what is between them is a `Wire`'s business."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._begun = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """The library calls it again after the handler."""
        if not self._begun:
            self._begun = True
            self._transport.write(_HEAD)

    async def write_eof(self, data: bytes = b"") -> None:
        """The last, empty HTTP chunk, unless the client has gone; `data` is never sent."""
        if not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")

    @property
    def keep_alive(self) -> bool:
        """Always: clients reuse connections."""
        return True


class Wire:
    """The body of one streamed answer, in HTTP chunks; `EventStream.write_eof` ends it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write = transport.write

    @property
    def closed(self) -> bool:
        """Whether the client has gone."""
        return self._transport.is_closing()

    def send(self, event: bytes) -> None:
        """One event, or several that belong together: one HTTP chunk."""
        self._write(b"%x\r\n%b\r\n" % (len(event), event))

    def flush(self) -> None:
        """Nothing may be held back any more."""


class FaultyWire(Wire):
    """Spoils the bytes of every event."""

    def __init__(self, transport: asyncio.Transport, faults: Sequence[Callable[[bytes], bytes]]) -> None:
        super().__init__(transport)
        self._faults = faults

    def send(self, event: bytes) -> None:
        """In order, each fault on what the one before has made of it."""
        for fault in self._faults:
            event = fault(event)
        super().send(event)


class SplittingWire(FaultyWire):
    """The fault `split_utf8`: every event leaves in two network chunks.

    It is cut inside a multi-byte character where there is one, else at a place that moves from event to event.
    """

    def __init__(self, transport: asyncio.Transport, faults: Sequence[Callable[[bytes], bytes]], clock: Clock) -> None:
        super().__init__(transport, [*faults, self._hold_back])
        self._clock = clock
        self._rest = b""
        self._num_events = 0

    def flush(self) -> None:
        """Sends the rest of the last event, by timer or at the end; drops it if the client has gone."""
        if self._rest and not self.closed:
            Wire.send(self, self._rest)
        self._rest = b""

    def _hold_back(self, event: bytes) -> bytes:
        data = self._rest + event
        self._num_events += 1
        inside = next((place for place, byte in enumerate(data) if place and 0x80 <= byte < 0xC0), 0)
        cut = inside or 1 + (self._num_events * 7919) % max(1, len(data) - 1)
        self._rest = data[cut:]
        self._clock.call_at(monotonic() + _SPLIT_PAUSE_S, lambda _now: self.flush())
        return data[:cut]
