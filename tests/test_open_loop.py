"""Open loop over real sockets: sent when due whatever the server does, and every wait is counted."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise

import pytest
from pydantic import ValidationError

from loop.dialects import Request
from loop.metrics.e2e import E2e
from loop.metrics.goodput import Goodput
from loop.metrics.makespan import Makespan
from loop.metrics.ttft import Ttft
from loop.pool import NUM_CONNECTING
from tests.wire import (
    DIALECTS,
    DONE,
    NUM_TOKENS,
    Canned,
    Fakes,
    Send,
    Serve,
    event,
    http,
    job_for,
    quick,
    received_request,
    request,
    several,
)

pytest_plugins = ["tests.wire_fixtures"]

MS = 1_000_000
SLOW = ("--ttft-ms", "400")
STALL_S = 0.5


@pytest.fixture(scope="module", autouse=True)
def _start(fakes: Fakes) -> None:
    """Side by side, before anything is timed."""
    fakes.ready(quick(), quick(flags=SLOW), quick("never_answers", flags=("--fault-after", "2")))


def every(gap_ms: float, number: int) -> tuple[int, ...]:
    """A schedule of so many requests."""
    return tuple(round(index * gap_ms * MS) for index in range(number))


def same(number: int) -> list[Request]:
    """Requests with the prompt that canned answers are for."""
    return [request(f"r{index:02d}") for index in range(number)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_requests_leave_when_they_are_due_in_the_order_of_the_schedule(serve: Serve, send: Send, dialect: str) -> None:
    """Never before; and the reply says when it was due and when it left."""
    schedule = (0, 30 * MS, 30 * MS, 100 * MS)

    replies, report = send(serve(), *several(4), schedule_ns=schedule, dialect=dialect, concurrency=4)

    assert [None] * 4 == [reply.failure for reply in replies]
    assert list(schedule) == [reply.scheduled_ns for reply in replies]
    assert [] == [reply.rid for reply in replies if (reply.sent_ns or 0) < (reply.scheduled_ns or 0)]
    assert report.wall_s >= 0.1


def test_a_slow_server_gets_no_less_load(serve: Serve, send: Send) -> None:
    """All are sent before the first is answered; a closed loop would have waited, and spared it."""
    replies, report = send(serve(flags=SLOW), *several(10), schedule_ns=every(10, 10), concurrency=10)

    assert max(reply.sent_ns or 0 for reply in replies) < min(reply.first_ns or 0 for reply in replies)
    assert [None] * 10 == [reply.failure for reply in replies]
    assert (10, 0) == (report.num_connections, report.num_late_connections)


def test_more_connections_are_opened_only_when_all_are_busy(serve: Serve, send: Send) -> None:
    """They were not expected, so they are reported."""
    _, crowded = send(serve(flags=SLOW), *several(6), schedule_ns=every(5, 6), concurrency=2)
    _, calm = send(serve(), *several(4), schedule_ns=every(60, 4), concurrency=2)

    assert (6, 4) == (crowded.num_connections, crowded.num_late_connections)
    assert (2, 0) == (calm.num_connections, calm.num_late_connections)


def test_no_more_connections_than_requests_are_opened_beforehand(serve: Serve, send: Send) -> None:
    """Whatever was expected."""
    _, report = send(serve(), *several(2), schedule_ns=every(20, 2), concurrency=64)

    assert (2, 0) == (report.num_connections, report.num_late_connections)


@pytest.fixture
def stalling() -> Iterator[int]:
    """A port that takes connections one at a time, and the second only after a stall."""
    answer = http(event() + DONE)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def answer_slowly() -> None:
            for number in range(4):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    time.sleep(STALL_S if number == 1 else 0)
                    received_request(connection)
                    connection.sendall(answer)

        thread = threading.Thread(target=answer_slowly)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_those_behind_a_stall_have_waited_too(send: Send, stalling: int) -> None:
    """Requests that were due while the server stood still count from when they were due (coordinated omission)."""
    replies, _ = send(stalling, *same(4), schedule_ns=every(100, 4))

    assert [None] * 4 == [reply.failure for reply in replies]
    waits_ms = Ttft().samples(replies)
    assert [] == [wait_ms for wait_ms in waits_ms[1:] if wait_ms < (STALL_S - 0.3) * 1e3]
    for reply in replies:
        late_ms = ((reply.sent_ns or 0) - (reply.scheduled_ns or 0)) / MS
        assert reply.ttft_ms == pytest.approx((reply.sent_to_first_ms or 0) + late_ms)
        assert reply.e2e_ms == pytest.approx((reply.sent_to_last_ms or 0) + late_ms)


def test_the_report_says_how_well_the_schedule_was_kept(serve: Serve, send: Send) -> None:
    """Requested and achieved rate, and how late requests left."""
    replies, report = send(serve(), *several(40), schedule_ns=every(5, 40), concurrency=8)

    kept = report.punctuality
    assert kept is not None
    sent = sorted(reply.sent_ns or 0 for reply in replies)
    delays = sorted(((reply.sent_ns or 0) - (reply.scheduled_ns or 0)) / MS for reply in replies)
    assert 200.0 == pytest.approx(kept.requested_rate_per_s)
    assert 39e9 / (sent[-1] - sent[0]) == pytest.approx(kept.achieved_rate_per_s)
    assert kept.achieved_share == pytest.approx((kept.achieved_rate_per_s or 0) / 200)
    assert (delays[-1], None) == (kept.delay_max_ms, kept.delay_p99_ms)
    assert delays[0] <= (kept.delay_p50_ms or -1) <= delays[-1]


def test_the_tail_of_the_delay_is_known_from_a_hundred_requests_on(serve: Serve, send: Send) -> None:
    """Of fewer, it would be the largest under another name."""
    _, report = send(serve(), *[request(f"r{n}", num_tokens=1) for n in range(100)], schedule_ns=every(2, 100))

    kept = report.punctuality
    assert kept is not None
    assert (kept.delay_p50_ms or 0) <= (kept.delay_p99_ms or 0) <= (kept.delay_max_ms or 0)


def test_a_closed_loop_has_no_schedule_to_keep(serve: Serve, send: Send) -> None:
    """And its requests are due when they are sent."""
    (reply,), report = send(serve())

    assert (None, None) == (report.punctuality, reply.scheduled_ns)
    assert (reply.ttft_ms, reply.e2e_ms) == (reply.sent_to_first_ms, reply.sent_to_last_ms)


def test_one_scheduled_request_has_no_rate(serve: Serve, send: Send) -> None:
    """Its delay it has."""
    (reply,), report = send(serve(), schedule_ns=(20 * MS,))

    kept = report.punctuality
    assert kept is not None
    assert (None, None, None) == (kept.requested_rate_per_s, kept.achieved_rate_per_s, kept.achieved_share)
    assert ((reply.sent_ns or 0) - 20 * MS) / MS == kept.delay_max_ms


def test_nothing_that_was_never_sent_has_a_delay(send: Send, unused_port: int) -> None:
    """A server that refuses connections is asked at every due time, and no request gets a latency."""
    replies, report = send(unused_port, *several(3), schedule_ns=every(10, 3))

    assert [("connect", None, None)] * 3 == [(r.failure, r.sent_ns, r.ttft_ms) for r in replies]
    kept = report.punctuality
    assert kept is not None
    assert (None, None, None) == (kept.achieved_rate_per_s, kept.delay_p50_ms, kept.delay_max_ms)
    assert 0.5 / 0.03 == pytest.approx(Goodput().value(replies))
    assert None is E2e().value(replies)


@pytest.fixture
def unused_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def test_a_server_that_falls_silent_stops_nobody_elses_request(serve: Serve, send: Send) -> None:
    """Each is sent, and each fails by itself."""
    port = serve("never_answers", flags=("--fault-after", "2"))

    replies, _ = send(port, *several(4), schedule_ns=every(20, 4), concurrency=4, idle_timeout_s=0.3)

    assert 3 <= [reply.failure for reply in replies].count("idle_timeout")
    assert [] == [reply.rid for reply in replies if reply.sent_ns is None]


def test_what_is_due_after_the_deadline_has_failed(serve: Serve, send: Send) -> None:
    """The job's time is up, also for what has not been sent."""
    replies, _ = send(serve(), *several(2), schedule_ns=(0, 300 * MS), deadline_s=0.2)

    assert [None, "deadline"] == [reply.failure for reply in replies]


def test_a_connection_that_hung_up_while_it_was_idle_is_not_used(send: Send, canned: Canned) -> None:
    """The server had every right to close it; the request behind it must not fail for that."""
    replies, report = send(canned(http(event() + DONE)), *same(3), schedule_ns=every(80, 3))

    assert [None] * 3 == [reply.failure for reply in replies]
    assert (3, 2) == (report.num_connections, report.num_late_connections)


def test_a_burst_is_sent_as_a_burst(serve: Serve, send: Send) -> None:
    """All due at the same time, on more connections than are opened at a time."""
    number = NUM_CONNECTING + 20

    replies, report = send(serve(), *several(number), schedule_ns=(0,) * number, concurrency=number)

    assert [None] * number == [reply.failure for reply in replies]
    assert number == report.num_connections
    sent = [reply.sent_ns or 0 for reply in replies]
    assert all(earlier <= later for earlier, later in pairwise(sent))


def test_a_job_needs_a_time_for_every_request() -> None:
    """Or for none."""
    with pytest.raises(ValidationError, match="3 times for 2 requests"):
        job_for(1, several(2), schedule_ns=every(1, 3))


def test_the_makespan_of_an_open_loop_begins_when_its_first_request_is_due(serve: Serve, send: Send) -> None:
    """Not when the client got round to it."""
    replies, _ = send(serve(), *several(2), schedule_ns=(10 * MS, 20 * MS))

    last = max(reply.last_ns or 0 for reply in replies)
    assert (last - 10 * MS) / MS == pytest.approx(Makespan().value(replies))
    assert NUM_TOKENS == replies[0].num_tokens
