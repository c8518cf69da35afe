"""The timed client's process against real servers: what it counts, when it gives up, and how it says so."""

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from loop.errors import LoopError
from loop.host import free_port
from loop.measure import ClientProcess, read_artifact, run_step
from loop.metrics.e2e import E2e
from loop.metrics.goodput import Goodput
from loop.metrics.makespan import Makespan
from loop.metrics.throughput import Throughput
from loop.metrics.tpot import Tpot
from loop.metrics.ttft import Ttft
from loop.replies import Reply, read_replies
from loop.schedule import Step
from loop.watch import Watcher
from tests.wire import (
    CJK,
    DIALECTS,
    DONE,
    NUM_TOKENS,
    WORDS,
    Canned,
    Fakes,
    Send,
    Serve,
    event,
    http,
    job_for,
    quick,
    request,
    send_job,
    several,
)

pytest_plugins = ["tests.wire_fixtures"]

SECOND = ("--fault-after", "2")
SPOILED = ("u2028", "crlf", "comments", "multi_line_data", "empty_chunks", "split_utf8")
STREAMED = (
    ("--incremental-streaming-output",),
    ("--tokens-per-chunk", "3"),
    ("--tokens-per-chunk", "3", "--incremental-streaming-output"),
)
FAILING = ("hang_mid_stream", "never_answers", "inband_error", "http_500", "abort", "truncate", "no_done", "nan")


@pytest.fixture(scope="module", autouse=True)
def _start(fakes: Fakes) -> None:
    """Servers that are used more than once start side by side, before anything is timed."""
    several_flags = [quick(), *map(quick, SPOILED), *(quick(fault, flags=SECOND) for fault in FAILING)]
    fakes.ready(*several_flags, *(quick(flags=flags) for flags in STREAMED))


# what is counted


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("flags", [(), *STREAMED], ids="".join)
def test_counts_are_the_servers_however_it_streams(
    serve: Serve, send: Send, dialect: str, flags: tuple[str, ...]
) -> None:
    """Several tokens a chunk, repeated text or only what is new: the same text and the same counts."""
    plain, _ = send(serve(), dialect=dialect)
    per_chunk = 3 if "3" in flags else 1

    (reply,), _ = send(serve(flags=flags), dialect=dialect)

    assert (None, "") == (reply.failure, reply.error)
    assert (plain[0].text, plain[0].output_ids) == (reply.text, reply.output_ids)
    assert (NUM_TOKENS, plain[0].num_prompt_tokens) == (reply.num_tokens, reply.num_prompt_tokens)
    assert 1 <= (reply.num_first_tokens or 0) <= NUM_TOKENS  # a busy machine reads several chunks at once
    assert "length" == reply.finish_reason
    if dialect == "generate":
        assert NUM_TOKENS == len(reply.output_ids)
        assert 1 + -(-(NUM_TOKENS - 1) // per_chunk) == reply.num_chunks


@pytest.mark.parametrize("ids", [WORDS, CJK], ids=["words", "cjk"])
@pytest.mark.parametrize("fault", SPOILED)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_bytes_that_fragile_clients_get_wrong_change_nothing(
    serve: Serve, send: Send, dialect: str, fault: str, ids: tuple[int, ...]
) -> None:
    """The same text, ids and counts as from a server without the fault."""
    asked = [request("a", ids), request("b", (*ids, 7), 1), request("c", (*ids, 8), 33)]
    plain, _ = send(serve(), *asked, dialect=dialect)

    spoiled, _ = send(serve(fault), *asked, dialect=dialect)

    def seen(reply: Reply) -> tuple[object, ...]:
        text = reply.text.replace("\u2028", "")
        return text, reply.output_ids, reply.num_tokens, reply.finish_reason, reply.failure

    assert [seen(reply) for reply in plain] == [seen(reply) for reply in spoiled]
    assert [fault == "u2028"] * 3 == ["\u2028" in reply.text for reply in spoiled]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_time_per_token_counts_the_tokens_after_the_first_read(serve: Serve, send: Send, dialect: str) -> None:
    """Five tokens in the first read: speculative decoding must not look faster than it is."""
    port = serve("big_first_chunk", flags=("--ttft-ms", "20", "--tpot-ms", "4"))

    (reply,), _ = send(port, dialect=dialect)

    assert NUM_TOKENS == reply.num_tokens
    assert 5 <= (reply.num_first_tokens or 0) < NUM_TOKENS
    assert reply.first_ns is not None
    assert reply.last_ns is not None
    after_first = NUM_TOKENS - (reply.num_first_tokens or 0)
    assert reply.tpot_ms == pytest.approx((reply.last_ns - reply.first_ns) / 1e6 / after_first)
    assert (reply.ttft_ms or 0) >= 20 + 4 * 4
    assert (reply.e2e_ms or 0) >= 20 + 11 * 4


def test_an_answer_in_one_read_has_no_time_per_token(serve: Serve, send: Send) -> None:
    """None, not 0: it was not seen."""
    (reply,), _ = send(serve("coalesce"))

    assert (NUM_TOKENS, NUM_TOKENS, None) == (reply.num_first_tokens, reply.num_tokens, reply.tpot_ms)
    assert reply.ttft_ms == reply.e2e_ms


def test_cached_tokens_and_the_servers_own_time_are_kept(serve: Serve, send: Send) -> None:
    """They tell cache hits, and the client's share of a latency."""
    first, second = send(serve(), request("a", CJK[::-1]), request("b", CJK[::-1]))[0]

    assert 0 == first.num_cached_tokens
    assert 0 < (second.num_cached_tokens or 0) <= len(CJK)
    assert 0.0 < (first.server_e2e_s or 0) * 1e3 <= (first.e2e_ms or 0) + 1


# how it is sent


@pytest.mark.parametrize("dialect", DIALECTS)
def test_exactly_so_many_are_in_flight_on_connections_that_are_reused(serve: Serve, send: Send, dialect: str) -> None:
    """Closed loop: the next request leaves when one has ended, and replies keep the order of requests."""
    asked = several(20)

    replies, report = send(serve(), *asked, dialect=dialect, concurrency=4)

    assert [item.rid for item in asked] == [reply.rid for reply in replies]
    assert [None] * 20 == [reply.failure for reply in replies]
    assert 4 == report.num_connections
    assert 4 == most_in_flight(replies)


def test_no_more_connections_than_requests(serve: Serve, send: Send) -> None:
    """All at once means one connection each."""
    replies, report = send(serve(), *several(3), concurrency=64)

    assert (3, 3) == (report.num_connections, most_in_flight(replies))


def test_replies_keep_their_order_when_they_end_in_another(serve: Serve, send: Send) -> None:
    """A short request overtakes a long one."""
    replies, _ = send(serve(), request("long", num_tokens=200), request("short", num_tokens=2), concurrency=2)

    assert ["long", "short"] == [reply.rid for reply in replies]
    assert (replies[0].done_ns or 0) > (replies[1].done_ns or 0)


def test_connections_are_closed_when_a_job_is_done(serve: Serve, send: Send, client: ClientProcess) -> None:
    """A session has dozens of steps; none may leave its sockets to the next."""
    port = serve()
    send(port, *several(8), concurrency=8)
    assert client._process is not None
    process = psutil.Process(client._process.pid)
    before = process.num_fds()

    for _ in range(3):
        send(port, *several(8), concurrency=8)

    assert before == process.num_fds()


def test_times_are_in_order(serve: Serve, send: Send) -> None:
    """Sent, first, last, done; all after the step began."""
    for reply in send(serve(), *several(6), concurrency=3)[0]:
        times = [reply.sent_ns, reply.first_ns, reply.last_ns, reply.done_ns]
        assert None not in times
        assert times == sorted(times, key=lambda time_ns: time_ns or 0)
        assert (reply.sent_ns or 0) >= 0


def test_a_step_is_kept_with_its_replies(serve: Serve, client: ClientProcess, tmp_path: Path) -> None:
    """`run_step` sums up what the replies say, and refuses them when they were changed."""
    step = Step(kind="timed", workload="one", pass_index=2)
    measured = run_step(
        step,
        several(5),
        client=client,
        concurrency=2,
        port=serve(),
        dialect="generate",
        directory=tmp_path / "A1",
        root=tmp_path,
        watcher=Watcher(),
    )

    assert (5, 5 * NUM_TOKENS, 5 * (len(WORDS) + 1)) == (
        measured.num_requests, measured.num_tokens, measured.num_prompt_tokens,
    )  # fmt: skip
    assert {} == measured.failures
    assert "A1/one-2.jsonl.zst" == measured.raw.path
    assert [item.rid for item in several(5)] == [reply.rid for reply in read_artifact(measured.raw, tmp_path)]
    stored = tmp_path / measured.raw.path
    stored.write_bytes(stored.read_bytes() + b"\0")
    with pytest.raises(LoopError, match="does not hash to what the round recorded"):
        read_artifact(measured.raw, tmp_path)
    stored.unlink()
    with pytest.raises(LoopError, match="is missing"):
        read_artifact(measured.raw, tmp_path)


def test_whoever_watches_hears_of_requests_and_reads(serve: Serve, client: ClientProcess, tmp_path: Path) -> None:
    """At the latest when all have ended. Tokens are counted only afterwards."""

    class Listener(Watcher):
        def traffic(self, num_done: int, num_reads: int) -> None:
            heard.append((num_done, num_reads))

    heard: list[tuple[int, int]] = []
    (tmp_path / "job.json").write_text(job_for(serve(), several(3)).model_dump_json())

    client.send(tmp_path / "job.json", tmp_path / "replies", Listener())

    assert sorted(heard) == heard
    assert 3 == heard[-1][0]
    assert 3 <= heard[-1][1] <= 3 * (NUM_TOKENS + 2)


# how it fails


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("fault", "failure", "error"),
    [
        ("hang_mid_stream", "idle_timeout", "no bytes for"),
        ("never_answers", "idle_timeout", "no bytes for"),
        ("inband_error", "inband_error", "injected by the fault 'inband_error'"),
        ("http_500", "http_status", "HTTP 500: "),
        ("abort", "aborted", "the server aborted the request"),
        ("truncate", "length_mismatch", "6 of 12 tokens"),
        ("no_done", "no_end_marker", "the stream ended without [DONE]"),
        ("nan", "parse", ""),
    ],
)
def test_every_fault_is_a_typed_failure(
    serve: Serve, send: Send, dialect: str, fault: str, failure: str, error: str
) -> None:
    """With words, and without spoiling the request before or being retried."""
    replies, _ = send(serve(fault, flags=SECOND), *several(3), dialect=dialect, idle_timeout_s=0.2)

    # The server counts requests of both dialects: the first job's first request is the only one that is spared.
    assert [failure, failure] == [reply.failure for reply in replies[1:]]
    assert [] == [reply.error for reply in replies[1:] if error not in reply.error]


def test_a_failed_request_does_not_spoil_the_next(serve: Serve, send: Send, canned: Canned) -> None:
    """A new connection where the old one was given up; an answer that ended leaves its connection usable."""
    broken = canned(http(event() + b"data: {"))

    assert ["truncated"] * 3 == [reply.failure for reply in send(broken, *several(3))[0]]
    assert [None] * 3 == [reply.failure for reply in send(serve(), *several(3))[0]]


def test_a_check_may_end_before_its_limit(serve: Serve, send: Send) -> None:
    """Only timed traffic owes an exact length."""
    reply = send(serve("truncate", flags=SECOND), *several(1), request(ignore_eos=False))[0][1]

    assert (None, "stop", 6) == (reply.failure, reply.finish_reason, reply.num_tokens)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_unfinished_at_the_deadline_has_failed(serve: Serve, send: Send, dialect: str) -> None:
    """A slow server keeps sending bytes, so silence alone would never end it; the queue fails with it."""
    port = serve(flags=("--tpot-ms", "50"))
    began = time.monotonic()

    replies, _ = send(port, *several(3, 200), dialect=dialect, deadline_s=0.4)

    assert ["deadline"] * 3 == [reply.failure for reply in replies]
    assert replies[0].num_tokens
    assert replies[0].num_tokens < 200
    assert time.monotonic() - began < 5


def test_silence_is_counted_from_the_last_byte(serve: Serve, send: Send) -> None:
    """A response that takes longer than the timeout but never falls silent is fine."""
    (reply,), _ = send(serve(flags=("--tpot-ms", "50")), idle_timeout_s=0.4)

    assert None is reply.failure
    assert (reply.e2e_ms or 0) > 500


def test_a_port_that_nobody_listens_on_is_a_failure_to_connect(send: Send) -> None:
    """Of every request, none of which was sent."""
    port = free_port()

    replies, report = send(port, *several(3), concurrency=2)

    assert [("connect", None, None)] * 3 == [(reply.failure, reply.sent_ns, reply.e2e_ms) for reply in replies]
    assert f"127.0.0.1:{port} refused a connection" == replies[0].error
    assert 0 == report.num_connections


def test_a_server_that_dies_in_the_middle_resets_its_streams(serve: Serve, send: Send) -> None:
    """What was in flight is reset; what comes after finds nobody."""
    port = serve("die_mid_stream", flags=SECOND)

    replies, _ = send(port, *several(4))

    failures = [reply.failure for reply in replies]
    assert [None, "reset", "connect"] == [*failures[:2], failures[3]]
    assert failures[2] in ("reset", "connect")  # the kernel closes the port a moment after the stream


def test_a_server_that_is_killed_resets_its_streams(fakes: Fakes, send: Send) -> None:
    """By the kernel, from outside, with several streams open."""
    flags = ("--tpot-ms", "20", "--ttft-ms", "2", "--seed", "1")
    port = fakes.port(*flags)
    killer = threading.Timer(0.4, fakes.kill, flags)
    killer.start()

    replies, _ = send(port, *several(3, 400), concurrency=3)

    killer.join()
    assert ["reset"] * 3 == [reply.failure for reply in replies]
    assert [] == [reply.rid for reply in replies if not reply.num_tokens]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (http(event() + DONE), None),
        (http(b""), "no_end_marker"),
        (http(DONE), "truncated"),
        (http(event()), "no_end_marker"),
        (http(event() + b"data: [DO"), "truncated"),
        (http(event() + DONE, more=5), "reset"),
        (http(event(prompt_tokens=3) + DONE), "prompt_mismatch"),
        (http(event(completion_tokens=3) + DONE), "length_mismatch"),
        (http(event(completion_tokens=0) + DONE), "truncated"),
        (http(event(finish_reason=None) + DONE), "truncated"),
        (http(event(finish_reason={"type": "abort"}) + DONE), "aborted"),
        (http(b"data: {]\n\n" + DONE), "parse"),
        (http(b"data: [1]\n\n" + DONE), "parse"),
        (http(b'data: {"error": "no"}\n\n' + DONE), "inband_error"),
        (http(event() + b'data: {"error": "late"}\n\n' + DONE), "inband_error"),
        (http(b'data: {"error": "first"}\n\n', more=5), "inband_error"),
        (http(event() + DONE, status="503 Busy"), "http_status"),
        (http(b"", status="204 No Content"), "http_status"),
        (b"nonsense\r\n\r\n", "parse"),
        (b"", "reset"),
    ],
)
def test_answers_that_no_server_should_give(send: Send, canned: Canned, answer: bytes, failure: str | None) -> None:
    """Success needs HTTP 200, no error, a reason, an end marker and exact counts."""
    (reply,), _ = send(canned(answer))

    assert failure == reply.failure


@pytest.mark.parametrize(
    "damaged",
    [
        {"completion_tokens": "many"},
        {"prompt_tokens": "many"},
        {"cached_tokens": [1]},
        {"e2e_latency": "soon"},
        {"finish_reason": {"type": 3}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_of_another_type_are_a_failure_of_that_request(
    tmp_path: Path, canned: Canned, damaged: dict[str, Any]
) -> None:
    """They must not end the client, and with it the round."""
    port = canned(http(event(**damaged) + DONE))
    with ClientProcess(tmp_path / "client.log") as client:
        (reply,), _ = send_job(client, tmp_path, port, [request()])

    assert "parse" == reply.failure


def test_a_client_that_cannot_do_its_job_says_where_to_look(tmp_path: Path) -> None:
    """Its own failure is ours, not the server's."""
    with ClientProcess(tmp_path / "client.log") as client, pytest.raises(LoopError) as caught:
        client.send(tmp_path / "no-such-job.json", tmp_path / "replies", Watcher())

    assert "the client process ended with exit code 1" in str(caught.value)
    assert f"read {tmp_path / 'client.log'}" in str(caught.value)
    assert "No such file" in (tmp_path / "client.log").read_text()


def most_in_flight(replies: list[Reply]) -> int:
    """The largest number of requests that were open at the same time."""
    opened = [(reply.sent_ns or 0, 1) for reply in replies]
    closed = [(reply.done_ns or 0, -1) for reply in replies]
    running = most = 0
    for _, change in sorted([*opened, *closed]):
        running += change
        most = max(most, running)
    return most


def test_a_server_that_accepts_and_never_answers_is_given_up(send: Send) -> None:
    """Not even headers come: the kernel took the connection, and nobody reads it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        replies, _ = send(listener.getsockname()[1], *several(2), concurrency=2, idle_timeout_s=0.3)

    assert [("idle_timeout", None, 0)] * 2 == [(r.failure, r.first_ns, r.num_chunks) for r in replies]
    assert [] == [r.rid for r in replies if r.sent_ns is None]


# what it knows about itself


def test_a_step_without_a_success_has_no_latency(send: Send) -> None:
    """Nothing is 0 that was not seen, and no metric has a sample."""
    replies, report = send(free_port(), *several(3))

    assert (None, None, None, None) == (
        report.e2e_p50_ms, report.outside_server_p50_ms, report.outside_server_p50_share, report.punctuality,
    )  # fmt: skip
    assert 0 == report.num_connections
    for metric in (E2e(), Ttft(), Tpot(), Makespan(), Goodput(ttft_ms=1e9)):
        assert () == metric.samples(replies)
        assert metric.value(replies) is None
    assert () == Throughput().samples(replies)


def test_one_request_of_one_token_has_a_latency_and_nothing_per_token(serve: Serve, send: Send) -> None:
    """Nor a rate: one request has none."""
    (reply,), report = send(serve(), request(num_tokens=1))

    assert (None, 1, 1) == (reply.failure, reply.num_tokens, reply.num_first_tokens)
    assert (reply.ttft_ms, None) == (reply.e2e_ms, reply.tpot_ms)
    assert reply.e2e_ms == report.e2e_p50_ms
    assert () == Tpot().samples([reply])
    assert () == Goodput().samples([reply])


def test_the_client_reports_its_own_share_of_a_core_and_of_a_latency(serve: Serve, send: Send) -> None:
    """Where the server says how long it took itself."""
    replies, report = send(serve(), *several(20), concurrency=2)

    assert 0 < report.cpu_share < 1
    assert report.cpu_s / report.wall_s == report.cpu_share
    gaps = sorted((reply.e2e_ms or 0) - (reply.server_e2e_s or 0) * 1e3 for reply in replies)
    assert gaps[9] <= (report.outside_server_p50_ms or 0) <= gaps[10]
    assert 0 < (report.outside_server_p50_share or 0) < 1


@pytest.mark.parametrize("dialect", ["completions", "chat"])
def test_a_server_that_does_not_time_itself_leaves_the_clients_share_unknown(
    serve: Serve, send: Send, dialect: str
) -> None:
    """OpenAI's APIs have no such field."""
    _, report = send(serve(), dialect=dialect)

    assert (None, None) == (report.outside_server_p50_ms, report.outside_server_p50_share)
    assert report.e2e_p50_ms is not None


def test_the_lag_of_the_event_loop_is_known_after_a_second(serve: Serve, send: Send) -> None:
    """Ninety-nine of a hundred probes need a hundred."""
    port = serve(flags=("--tpot-ms", "50"))

    assert None is send(port)[1].loop_lag_p99_ms
    assert 0 <= (send(port, request(num_tokens=25))[1].loop_lag_p99_ms or -1) < 1000


def test_a_connection_that_the_server_closed_is_replaced_and_counted(serve: Serve, send: Send, canned: Canned) -> None:
    """Its handshake is in a latency's way, so the report has it."""
    closing_each, keeping = canned(http(event() + DONE)), serve()

    assert (3, 2) == counted(send(closing_each, *several(3)))
    assert (1, 0) == counted(send(keeping, *several(3)))


def counted(sent: tuple[list[Reply], Any]) -> tuple[int, int]:
    """Connections, and those among them that were opened late."""
    return sent[1].num_connections, sent[1].num_late_connections


def test_the_client_may_open_as_many_files_as_the_machine_allows(tmp_path: Path) -> None:
    """A shell's usual 1024 would end a job of 2000 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with ClientProcess(tmp_path / "client.log") as client:
            send_job(client, tmp_path, free_port(), several(1))  # now it has surely begun
            assert client._process is not None
            limits = resource.prlimit(client._process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert limits[0] > 256
    assert hard == limits[1]


STEPPING = """
import time
wall = iter(range(10**12, 0, -3600))
time.time = lambda: float(next(wall))
time.time_ns = lambda: next(wall) * 10**9
from loop.client import main
main()
"""
"""The client on a machine whose wall clock is set back by an hour at every look."""


def test_a_wall_clock_that_is_set_back_changes_no_duration(serve: Serve, tmp_path: Path) -> None:
    """Every duration is monotonic; the wall clock is for the record only."""
    job = job_for(serve(flags=("--ttft-ms", "20")), several(3))
    (tmp_path / "job.json").write_text(job.model_dump_json())
    paths = f'["{tmp_path / "job.json"}", "{tmp_path / "replies"}"]\n'

    done = subprocess.run(
        [sys.executable, "-c", STEPPING], input=paths, capture_output=True, text=True, check=True, timeout=60
    )

    replies = read_replies(tmp_path / "replies")
    assert '"started_at_ns":99999' in done.stdout
    assert [None] * 3 == [reply.failure for reply in replies]
    for reply in replies:
        times = [reply.sent_ns or 0, reply.first_ns or 0, reply.last_ns or 0, reply.done_ns or 0]
        assert times == sorted(times)
        assert 20 <= (reply.ttft_ms or 0) < 10_000


INTERRUPTED = """
import sys
from pathlib import Path
from loop.measure import ClientProcess
from loop.watch import Watcher
class Announcer(Watcher):
    def traffic(self, num_done, num_reads):
        print("sending", client._process.pid, flush=True)
try:
    with ClientProcess(Path(sys.argv[1]) / "client.log") as client:
        client.send(Path(sys.argv[1]) / "job.json", Path(sys.argv[1]) / "replies", Announcer())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_ends_the_client_with_the_round(serve: Serve, tmp_path: Path) -> None:
    """It reaches the whole process group; the round decides, and leaves no client and no traceback."""
    job = job_for(serve(flags=("--tpot-ms", "50")), several(2, 1000), concurrency=2, deadline_s=60.0)
    (tmp_path / "job.json").write_text(job.model_dump_json())
    round_ = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert round_.stdout is not None
    pid = int(round_.stdout.readline().split()[1])

    os.killpg(round_.pid, signal.SIGINT)

    with round_:
        assert 130 == round_.wait(10)
    assert not psutil.pid_exists(pid)
    assert "" == (tmp_path / "client.log").read_text()
