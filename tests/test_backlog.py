"""What is read while traffic flows is understood later, in its order, and never takes more memory than it may."""

import asyncio
import socket
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loop.backlog import READ_BYTES, Backlog
from loop.connection import Connection
from loop.dialects.generate import Generate
from loop.response import Response
from loop.stream import MAX_EVENT_BYTES
from tests.wire import DONE, http, native

EVENTS = b"".join(native(n, range(n), text="ab" * n, last=n == 6) for n in range(1, 7)) + DONE
READS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300), st.booleans()), max_size=40)
"""(whose response, how many bytes, whether they come in two pieces) of each network read."""


def answered() -> Response:
    """The response to a request that was answered with HTTP 200."""
    response = Response(Generate())
    response.status = 200
    return response


def fill(backlog: Backlog, response: Response, *pieces: bytes, at_ns: int = 1) -> None:
    """One network read with these pieces of a body."""
    backlog.note(response, at_ns, sum(map(len, pieces)))
    for piece in pieces:
        backlog.keep(piece)


def said(response: Response) -> dict[str, Any]:
    """All that its dialect has made of it."""
    response.finish()
    return vars(response.dialect)


def test_nothing_is_understood_before_it_is_asked_for() -> None:
    """Then all of it is, with the times at which it came."""
    backlog, response = Backlog(), answered()
    fill(backlog, response, native(1, [1], text="a"), at_ns=10)
    fill(backlog, response, native(2, [1, 2], text="ab", last=True), DONE, at_ns=20)
    assert 0 == response.dialect.num_chunks

    backlog.understand()

    dialect = response.dialect
    response.finish()
    assert ("ab", 2, 2, True) == (dialect.text, dialect.num_tokens, dialect.num_chunks, dialect.ended)
    assert (10, 20, 1) == (dialect.first_ns, dialect.last_ns, dialect.num_first_tokens)
    assert (2, 0) == (backlog.num_reads, backlog.num_bytes)


@given(READS, st.integers(0, 4000))
def test_how_much_is_kept_changes_nothing_that_is_said(reads: list[tuple[int, int, bool]], max_bytes: int) -> None:
    """Of several responses at once, wherever the network cuts them; and no more is kept than may be."""
    found = []
    for most in (1 << 20, max_bytes):
        backlog = Backlog(most)
        responses = [answered(), answered(), answered()]
        left = [EVENTS] * 3
        for at_ns, (number, size, in_two) in enumerate(reads, 1):
            read, left[number] = left[number][:size], left[number][size:]
            fill(backlog, responses[number], *((read[:5], read[5:]) if in_two else (read,)), at_ns=at_ns)
            assert backlog.num_bytes <= max(most, len(read) + READ_BYTES)
        backlog.understand()
        found.append([said(response) for response in responses])

    assert found[0] == found[1]


def test_a_full_backlog_makes_place_of_the_oldest_reads() -> None:
    """As many bytes as come, so that no read has to wait for a burst."""
    backlog, first, second = Backlog(3 * (READ_BYTES + len(DONE))), answered(), answered()
    for _ in range(2):
        fill(backlog, first, DONE)
    fill(backlog, second, DONE)
    assert not first.dialect.ended

    fill(backlog, second, DONE)

    assert (True, False) == (first.dialect.ended, second.dialect.ended)
    assert 3 * (READ_BYTES + len(DONE)) == backlog.num_bytes


def test_an_event_that_never_ends_is_the_end_of_its_response() -> None:
    """The rest is thrown away; what failed first stands."""
    response = answered()
    response.fail("reset", "the connection was closed because of it")

    for _ in range(3):
        response.take(1, b"data: " + b"x" * (MAX_EVENT_BYTES // 2))

    response.finish()
    assert response.too_large
    assert "parse" == response.dialect.failure
    assert "bytes without the end of an event" in response.dialect.error


def test_a_response_that_is_too_large_loses_its_connection() -> None:
    """Nobody would read what a server goes on to send."""

    async def see() -> tuple[bool, Response]:
        ours, theirs = socket.socketpair()
        with theirs:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(lambda: Connection(Backlog()), sock=ours)
            response = Response(Generate())
            done = connection.send(b"a request", response)
            response.too_large = True
            theirs.sendall(http(DONE, more=1000))
            await asyncio.wait_for(done, 10)
            return connection.open, response

    still_open, response = asyncio.run(see())

    response.finish()
    assert not still_open
    assert "reset" == response.dialect.failure
