"""The HTTP library's connection, plus the time at which a request's last byte arrived.

Sixty-four requests that arrive together are parsed one after the other; a TTFT counted from when its handler starts
would be several milliseconds late for the last of them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

_MAX_BODY_BYTES = 1 << 28


class Connection(web.RequestHandler):
    """One client connection."""

    __slots__ = ("received_s",)

    def data_received(self, data: bytes) -> None:
        """Stamps every piece, so a complete request carries the `monotonic()` time of its last byte."""
        self.received_s = monotonic()
        super().data_received(data)


class Server(web.Server):
    """Makes such connections, cancels a handler whose client has gone, and takes prompts of any length."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, request_factory=_make_request, handler_cancellation=True, access_log=None)

    def __call__(self) -> Connection:
        """Called by the event loop, inside it, for every connection it accepts."""
        return Connection(self, loop=asyncio.get_running_loop(), **self._kwargs)


def received_at(request: web.BaseRequest) -> float:
    """When the request was complete, as `time.monotonic()`; call after its body was read."""
    connection = request.protocol
    return connection.received_s if isinstance(connection, Connection) else monotonic()


def _make_request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_MAX_BODY_BYTES)
