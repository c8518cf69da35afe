"""The timed client's process against real servers: what it counts, when it gives up, and how it says so."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from loop.client import ClientReport, Job
from loop.dialects import Request
from loop.errors import LoopError
from loop.host import free_port
from loop.measure import ClientProcess, read_artifact, run_step
from loop.replies import Reply, read_replies
from loop.schedule import Step
from loop.watch import Watcher

READY = "The server is fired up and ready to roll!"
QUICK = ("--tpot-ms", "0.2", "--ttft-ms", "2")
SECOND = ("--fault-after", "2")
SPOILED = ("u2028", "crlf", "comments", "multi_line_data", "empty_chunks", "split_utf8")
STREAMED = (
    ("--incremental-streaming-output",),
    ("--tokens-per-chunk", "3"),
    ("--tokens-per-chunk", "3", "--incremental-streaming-output"),
)
WORDS, CJK = tuple(range(300, 324)), (0x4E16, 0x754C, *range(300, 322))
NUM_TOKENS = 12
Send = Callable[..., tuple[list[Reply], ClientReport]]
Serve = Callable[..., int]


NURSERY = """
import json, os, signal, sys
import uvloop, loop.fake_server.lifecycle
from loop.fake_server.__main__ import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    log, argv = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
        os._exit(main(argv))
    print(pid, flush=True)
"""
"""`python -m loop.fake_server` once per line, without its half second of imports."""


class Fakes:
    """Fake servers by their flags, each started once; the first use waits for it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._pids: dict[tuple[str, ...], int] = {}

    def start(self, *flags: str) -> None:
        """Start one and do not wait."""
        if flags in self._pids:
            return
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        log = self._directory / f"server-{len(self._pids)}.log"
        argv = ["--model-path", "no-such-model", "--port", "0", *flags]
        print(json.dumps([str(log), argv]), file=self._nursery.stdin, flush=True)
        self._pids[flags] = int(self._nursery.stdout.readline())

    def port(self, *flags: str) -> int:
        """The port of the server with these flags."""
        self.start(*flags)
        log = self._directory / f"server-{list(self._pids).index(flags)}.log"
        deadline = time.monotonic() + 30
        while READY not in (text := log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline, text
            time.sleep(0.01)
        return int(re.findall(r"Uvicorn running on http://[\d.]+:(\d+)", text)[0])

    def kill(self, *flags: str) -> None:
        """Kill one, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self._pids[flags], signal.SIGKILL)

    def stop(self) -> None:
        """End them all."""
        for flags in self._pids:
            self.kill(*flags)
        self._nursery.communicate()


FAILING = ("hang_mid_stream", "never_answers", "inband_error", "http_500", "abort", "truncate", "no_done", "nan")


def quick(*faults: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The flags of a server without delays to speak of, with these faults and further flags."""
    return (*QUICK, *(part for fault in faults for part in ("--fault", fault)), *flags)


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fakes]:
    """The servers of this file. Those that are used more than once start side by side, before anything is timed."""
    servers = Fakes(tmp_path_factory.mktemp("servers"))
    several = [quick(), *map(quick, SPOILED), *(quick(fault, flags=SECOND) for fault in FAILING)]
    several += [quick(flags=flags) for flags in STREAMED]
    for flags in several:
        servers.start(*flags)
    for flags in several:
        servers.port(*flags)
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientProcess]:
    """One client process for every job of this file, as one serves every step of a session."""
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


def send_job(
    client: ClientProcess, directory: Path, port: int, requests: Sequence[Request], **settings: Any
) -> tuple[list[Reply], ClientReport]:
    """Have requests sent, one at a time and by `/generate` unless the settings say otherwise."""
    usual = {"dialect": "generate", "concurrency": 1, "idle_timeout_s": 10.0, "deadline_s": 20.0}
    job = Job.model_validate({"host": "127.0.0.1", "port": port, "requests": tuple(requests), **usual, **settings})
    (directory / "job.json").write_text(job.model_dump_json())
    report = client.send(directory / "job.json", directory / "replies.jsonl.zst", Watcher())
    return list(read_replies(directory / "replies.jsonl.zst")), report


def request(rid: str = "r0", ids: tuple[int, ...] = WORDS, num_tokens: int = NUM_TOKENS, **fields: Any) -> Request:
    """A request for exactly `num_tokens` tokens."""
    return Request.model_validate(
        {"rid": rid, "input_ids": ids, "max_new_tokens": num_tokens, "ignore_eos": True, **fields}
    )


def several(number: int, num_tokens: int = NUM_TOKENS) -> list[Request]:
    """Requests with different prompts."""
    return [request(f"r{index:02d}", (*WORDS, 400 + index), num_tokens) for index in range(number)]


@pytest.fixture
def canned() -> Iterator[Callable[[bytes], int]]:
    """A function that makes a port answer every request on a connection with these bytes, then close it."""
    with ExitStack() as stack:

        def canned_(answer: bytes) -> int:
            listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

            def answer_each() -> None:
                while True:
                    try:
                        connection, _ = listener.accept()
                    except OSError:
                        return
                    with connection:
                        connection.settimeout(10)
                        received = b""
                        while b"\r\n\r\n" not in received or not received.endswith(b"}"):
                            if not (read := connection.recv(1 << 16)):
                                break
                            received += read
                        if received:
                            connection.sendall(answer)

            thread = threading.Thread(target=answer_each)
            thread.start()
            stack.callback(thread.join)
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield canned_


def http(body: bytes, *, status: str = "200 OK", more: int = 0) -> bytes:
    """A response with this body; it claims `more` bytes than it has."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body) + more}\r\n\r\n".encode() + body


def event(**fields: Any) -> bytes:
    """One native event, of a whole answer unless `fields` say otherwise."""
    meta = {"prompt_tokens": len(WORDS), "completion_tokens": NUM_TOKENS, "finish_reason": {"type": "length"}}
    ids = list(range(NUM_TOKENS))
    return b"data: " + json.dumps({"text": "a b", "output_ids": ids, "meta_info": meta | fields}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


# what is counted


@pytest.mark.parametrize("dialect", ["generate", "completions"])
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
    assert (NUM_TOKENS, 1, len(WORDS)) == (reply.num_tokens, reply.num_first_tokens, reply.num_prompt_tokens)
    assert "length" == reply.finish_reason
    if dialect == "generate":
        assert NUM_TOKENS == len(reply.output_ids)
        assert 1 + -(-(NUM_TOKENS - 1) // per_chunk) == reply.num_chunks


@pytest.mark.parametrize("ids", [WORDS, CJK], ids=["words", "cjk"])
@pytest.mark.parametrize("fault", SPOILED)
@pytest.mark.parametrize("dialect", ["generate", "completions"])
def test_bytes_that_fragile_clients_get_wrong_change_nothing(
    serve: Serve, send: Send, dialect: str, fault: str, ids: tuple[int, ...]
) -> None:
    """The same text, ids and counts as from a server without the fault."""
    asked = [request("a", ids), request("b", (*ids, 7), 1), request("c", (*ids, 8), 33)]
    plain, _ = send(serve(), *asked, dialect=dialect)

    spoiled, _ = send(serve(fault), *asked, dialect=dialect)

    def seen(reply: Reply) -> tuple[object, ...]:
        text = reply.text.replace("\u2028", "")
        return text, reply.output_ids, reply.num_tokens, reply.num_first_tokens, reply.finish_reason, reply.failure

    assert [seen(reply) for reply in plain] == [seen(reply) for reply in spoiled]
    assert [fault == "u2028"] * 3 == ["\u2028" in reply.text for reply in spoiled]


@pytest.mark.parametrize("dialect", ["generate", "completions"])
def test_time_per_token_counts_the_tokens_after_the_first_read(serve: Serve, send: Send, dialect: str) -> None:
    """Five tokens in the first read: speculative decoding must not look faster than it is."""
    port = serve("big_first_chunk", flags=("--ttft-ms", "20", "--tpot-ms", "4"))

    (reply,), _ = send(port, dialect=dialect)

    assert (5, NUM_TOKENS) == (reply.num_first_tokens, reply.num_tokens)
    assert reply.first_ns is not None
    assert reply.last_ns is not None
    assert reply.tpot_ms == pytest.approx((reply.last_ns - reply.first_ns) / 1e6 / (NUM_TOKENS - 5))
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


@pytest.mark.parametrize("dialect", ["generate", "completions"])
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


# how it fails


@pytest.mark.parametrize("dialect", ["generate", "completions"])
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


def test_a_failed_request_does_not_spoil_the_next(serve: Serve, send: Send, canned: Callable[[bytes], int]) -> None:
    """A new connection where the old one was given up; an answer that ended leaves its connection usable."""
    broken = canned(http(event() + b"data: {"))

    assert ["truncated"] * 3 == [reply.failure for reply in send(broken, *several(3))[0]]
    assert [None] * 3 == [reply.failure for reply in send(serve(), *several(3))[0]]


def test_a_check_may_end_before_its_limit(serve: Serve, send: Send) -> None:
    """Only timed traffic owes an exact length."""
    reply = send(serve("truncate", flags=SECOND), *several(1), request(ignore_eos=False))[0][1]

    assert (None, "stop", 6) == (reply.failure, reply.finish_reason, reply.num_tokens)


@pytest.mark.parametrize("dialect", ["generate", "completions"])
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
        (http(event() + DONE, status="503 Busy"), "http_status"),
        (http(b"", status="204 No Content"), "http_status"),
        (b"nonsense\r\n\r\n", "parse"),
        (b"", "reset"),
    ],
)
def test_answers_that_no_server_should_give(
    send: Send, canned: Callable[[bytes], int], answer: bytes, failure: str | None
) -> None:
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
    tmp_path: Path, canned: Callable[[bytes], int], damaged: dict[str, Any]
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
