"""Fixtures of the timed client's tests; a module asks for them with `pytest_plugins = ["tests.wire_fixtures"]`."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from loop.client_report import ClientReport
from loop.dialects import Request
from loop.measure import ClientProcess
from loop.replies import Reply
from tests.wire import PAUSE_S, Canned, Fakes, Send, Serve, quick, received_request, request, send_job


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fakes]:
    """The fake servers of one test module."""
    servers = Fakes(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    """One client process for every job of a test module, as one serves every step of a session."""
    with ClientProcess(tmp_path_factory.mktemp("client") / "client.log") as process:
        yield process


@pytest.fixture
def serve(fakes: Fakes) -> Serve:
    """A function that starts a quick server with these faults and further flags, and returns its port."""

    def serve_(*faults: str, flags: tuple[str, ...] = ()) -> int:
        return fakes.port(*quick(*faults, flags=flags))

    return serve_


@pytest.fixture
def send(client: ClientProcess, tmp_path: Path) -> Send:
    """A function that has requests sent to a port and returns the replies and the client's report."""

    def send_(port: int, *requests: Request, **settings: Any) -> tuple[list[Reply], ClientReport]:
        return send_job(client, tmp_path, port, requests or (request(),), **settings)

    return send_


@pytest.fixture
def canned() -> Iterator[Canned]:
    """A function that makes a port answer every request with these bytes, a pause between the pieces, and hang up."""
    with ExitStack() as stack:

        def canned_(*pieces: bytes) -> int:
            listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

            def answer_each() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        connection.settimeout(10)
                        if received_request(connection):
                            for number, piece in enumerate(pieces):
                                time.sleep(PAUSE_S if number else 0)
                                connection.sendall(piece)

            thread = threading.Thread(target=answer_each)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield canned_
