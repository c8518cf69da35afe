"""The connections to one server: opened before the clock starts, more only when all of them are busy."""

import asyncio
from functools import partial

from loop.backlog import Backlog
from loop.connection import Connection

CONNECT_TIMEOUT_S = 10.0
NUM_CONNECTING = 128
"""Handshakes at a time: more would overflow a server's queue of new connections, and each lost one waits a second."""
REUSE_S = 3.0
"""A connection that was idle for longer is not used again: web servers close them after 5 s (Uvicorn's default), and a
request that crosses the closing on its way would fail without any fault of the server."""


class Pool:
    """Idle connections, the last used one first; all read into one backlog."""

    def __init__(self, host: str, port: int, backlog: Backlog) -> None:
        self._address = (host, port)
        self._new_connection = partial(Connection, backlog)
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._handshakes = asyncio.Semaphore(NUM_CONNECTING)
        self.num_opened = 0

    @property
    def name(self) -> str:
        """`host:port`, for people."""
        return "{}:{}".format(*self._address)

    async def open(self, number: int) -> None:
        """Open so many, as far as the server takes them."""
        for connection in await asyncio.gather(*(self.connect() for _ in range(number))):
            if connection is not None:
                self._idle.append(connection)

    async def connect(self) -> Connection | None:
        """One more connection, or None when the server does not accept one."""
        loop = asyncio.get_running_loop()
        async with self._handshakes:
            try:
                connecting = loop.create_connection(self._new_connection, *self._address)
                _, connection = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError):
                return None
        self.num_opened += 1
        self._connections.add(connection)
        return connection

    def take(self) -> Connection | None:
        """An idle connection that can be used, or None when there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.idle_s < REUSE_S:
                return connection
            self.drop(connection)
        return None

    def give(self, connection: Connection) -> None:
        """It is free again, if it is still open."""
        if connection.open:
            self._idle.append(connection)
        else:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close it."""
        connection.close()
        self._connections.discard(connection)

    def close(self) -> None:
        """Close all of them."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._idle.clear()
