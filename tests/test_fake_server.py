"""The fake server, through real processes and sockets: what it answers, when, and how it fails."""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from loop.fake_server.delays import Delays
from loop.fake_server.faults import EVENT_FAULTS, LOAD_FAULTS, PLAN_FAULTS
from loop.fake_server.flags import FAULTS, build_parser
from loop.fake_server.prefix_cache import PrefixCache
from loop.fake_server.vocabulary import internal_vocabulary

HOST = "127.0.0.1"
PROMPT = list(range(300, 340))
TIMEOUT_S = 10.0
READY = "The server is fired up and ready to roll!"


class FakeServer:
    """One server process and a small client of it. The first call waits for it, so that several start side by side."""

    def __init__(self, flags: tuple[str, ...], log: Path, env: dict[str, str]) -> None:
        self.log_file = log
        command = [sys.executable, "-m", "loop.fake_server", "--model-path", "no-such-model", "--port", "0", *flags]
        with log.open("w") as stderr:
            self.process = subprocess.Popen(command, stderr=stderr, env=os.environ | env, start_new_session=True)

    @property
    def log(self) -> str:
        """All of stderr so far."""
        return self.log_file.read_text()

    @property
    def port(self) -> int:
        """Known from the log only, so this waits until the server is ready."""
        self.wait_ready()
        return int(re.findall(r"Uvicorn running on http://[\d.]+:(\d+)", self.log)[0])

    def wait_ready(self) -> None:
        """Fails with the log if the server has exited or is not ready in time."""
        deadline = time.monotonic() + TIMEOUT_S
        while READY not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Returns the exit code; raises TimeoutExpired if the server stays."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> tuple[int, bytes]:
        """The status, whatever it is, and the whole body; raises TimeoutError when no byte comes in time."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Decoded JSON; anything but a 200 fails the test."""
        status, body = self.call("GET", path)
        assert status == 200
        return json.loads(body)

    def answer(self, prompt: list[int] | str = PROMPT, num_tokens: int = 8) -> Any:
        """The whole answer of /generate."""
        status, body = self.call("POST", "/generate", native(prompt, num_tokens))
        assert status == 200
        return json.loads(body)

    def text(self, prompt: list[int] | str = PROMPT, num_tokens: int = 8) -> str:
        """What the whole, unstreamed answer says."""
        return str(self.answer(prompt, num_tokens)["text"])

    def stream(self, prompt: list[int] = PROMPT, num_tokens: int = 8, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """The events of /generate, those that came if it broke off; `[DONE]` is one of them."""
        return events_of(self.raw_stream("/generate", native(prompt, num_tokens) | {"stream": True}, timeout_s))

    def raw_stream(self, path: str, body: Any, timeout_s: float = TIMEOUT_S) -> bytes:
        """The body without its HTTP chunks, as far as it came."""
        return b"".join(self.reads(path, body, timeout_s))

    def reads(self, path: str, body: Any, timeout_s: float = TIMEOUT_S) -> list[bytes]:
        """The body as it arrives; what had come when the time was up or the server died, too."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        reads: list[bytes] = []
        try:
            connection.request("POST", path, json.dumps(body | {"stream": True}))
            response = connection.getresponse()
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            while data := response.read1(1 << 16):
                reads.append(data)
        except (TimeoutError, http.client.IncompleteRead, ConnectionResetError):
            pass
        finally:
            connection.close()
        return reads

    def seconds(self, num_tokens: int, prompt: list[int] = PROMPT) -> float:
        """How long a whole, unstreamed answer takes, with its connection."""
        began = time.monotonic()
        self.answer(prompt, num_tokens)
        return time.monotonic() - began


Serve = Callable[..., FakeServer]


def native(prompt: list[int] | str, num_tokens: int) -> dict[str, Any]:
    """A body for /generate, not streamed: a string goes as text, a list as token ids."""
    key = "text" if isinstance(prompt, str) else "input_ids"
    return {key: prompt, "sampling_params": {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}}


def events_of(raw: bytes) -> list[Any]:
    """The data of every event, as an SSE client reads it: joined data lines, comments dropped, [DONE] as a string."""
    events: list[Any] = []
    for block in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[6:] for line in block.split(b"\n") if line.startswith(b"data: "))
        if data:
            events.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return events


def detached_pids(label: str, marker: str) -> list[int]:
    """Pids of detached processes that carry our marker in their environment."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if label in (process.info["cmdline"] or []) and process.environ().get("LOOP_TEST_MARKER") == marker
    ]


def wait_busy(server: FakeServer) -> None:
    """Until a request runs: the cache cannot be flushed then."""
    deadline = time.monotonic() + TIMEOUT_S
    while server.call("GET", "/flush_cache")[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def lives(pid: int) -> bool:
    """A zombie that nobody has collected yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers; whatever still runs at the end of the test is killed."""
    started: list[FakeServer] = []

    def start(*flags: str, env: dict[str, str] | None = None) -> FakeServer:
        server = FakeServer(flags, tmp_path / f"server-{len(started)}.log", env or {})
        started.append(server)
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeServer]:
    """One server without faults, for everything that only reads."""
    log = tmp_path_factory.mktemp("plain") / "server.log"
    flags = ("--enable-metrics", "--inert-number", "3", "--ignored-number", "4", "--reasoning-tokens", "3")
    server = FakeServer((*flags, "--enable-cache-report"), log, {})
    yield server
    assert server.stop() == 0


# the command line


def test_help_lists_every_fault_and_every_fault_is_implemented() -> None:
    """`--help` names each fault, and each belongs to exactly one place that carries it out."""
    text = build_parser().format_help()
    assert [] == [name for name in FAULTS if name not in text]
    elsewhere = {
        *("die_at_start", "oom_at_start", "hang_at_start", "hang_at_stop", "orphan", "hidden_orphan"),
        *("port_squatter",),
        *("split_utf8", "flush_refused", "hang_health"),
        *("profile_ignored", "trace_missing", "trace_cut", "trace_stale"),
    }
    implemented = [*PLAN_FAULTS, *LOAD_FAULTS, *EVENT_FAULTS, *elsewhere]
    assert sorted(FAULTS) == sorted(implemented)


def test_the_parser_needs_only_the_standard_library() -> None:
    """Bundles are validated against the parser where nothing is installed."""
    code = "import sys, loop.fake_server.flags; print([m for m in sys.modules if m.split('.')[0] in %r])"
    heavy = ("aiohttp", "uvloop", "orjson", "pydantic", "numpy", "tokenizers")
    ran = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert "[]" == ran.stdout.strip()


@pytest.mark.parametrize(
    "flags", [["--faul", "slow"], ["--fault", "nonsense"], ["--tpot-ms", "-1"], ["--ttft-ms", "nan"]]
)
def test_bad_flags_are_usage_errors(flags: list[str]) -> None:
    """Abbreviations, unknown faults and impossible delays exit with 2."""
    with pytest.raises(SystemExit) as raised:
        build_parser().parse_args(["--model-path", "m", *flags])
    assert 2 == raised.value.code


# known answers


def test_answers_are_the_same_in_every_process(serve: Serve, plain: FakeServer) -> None:
    """The answer depends on the prompt and the answer seed, on nothing else, and a short one begins a long one."""
    same, other = serve(), serve("--answer-seed", "1")
    expected = plain.answer(num_tokens=32)
    assert expected == same.answer(num_tokens=32) | {"meta_info": expected["meta_info"]}
    assert expected["output_ids"][:5] == plain.answer(num_tokens=5)["output_ids"]
    assert expected["text"] != plain.text([*PROMPT, 1], 32)
    assert expected["text"] != other.text(num_tokens=32)
    assert 32 == len(expected["text"].split())


def test_text_and_its_token_ids_get_the_same_answer(plain: FakeServer) -> None:
    """A prompt is its token ids, however it was sent; the internal vocabulary decodes what it encodes."""
    vocabulary = internal_vocabulary()
    prompt = "What is 2+2?\n kamo tené 北京\u2028 \U0001f600"
    ids = vocabulary.encode(prompt)
    assert prompt == vocabulary.decode(ids)
    answer = plain.answer(prompt)
    assert answer["text"] == plain.text(ids)
    assert len(ids) == answer["meta_info"]["prompt_tokens"]
    assert answer["text"] == vocabulary.decode(answer["output_ids"])


def test_cjk_prompts_are_answered_without_spaces(plain: FakeServer) -> None:
    """One character per token, no white space."""
    text = plain.text("请介绍一下北京。", 12)
    assert 12 == len(text)
    assert re.fullmatch(r"[\u4e00-\u9fff]{12}", text)


def test_a_tokenizer_in_the_model_directory_is_used(serve: Serve, tmp_path: Path) -> None:
    """Prompt counts are the tokenizer's, and re-encoding an answer gives its token ids back."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    server = serve("--model-path", str(tmp_path))
    for prompt in ("Hello, world", "你好"):
        answer = server.answer(prompt, 60)
        assert len(prompt.encode()) == answer["meta_info"]["prompt_tokens"]
        assert answer["output_ids"] == tokenizer.encode(answer["text"]).ids
        assert answer["text"] == server.stream(tokenizer.encode(prompt).ids, 60)[-2]["text"]


# streams


def test_native_chunks_repeat_what_was_sent(plain: FakeServer) -> None:
    """One token per chunk; text and ids grow; the finish reason and the latency come with the last one."""
    *chunks, done = plain.stream(num_tokens=6)
    whole = plain.answer(num_tokens=6)
    assert "[DONE]" == done
    assert [1, 2, 3, 4, 5, 6] == [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert [whole["output_ids"][:n] for n in range(1, 7)] == [chunk["output_ids"] for chunk in chunks]
    assert all(whole["text"].startswith(chunk["text"]) for chunk in chunks)
    assert whole["text"] == chunks[-1]["text"]
    assert [None] * 5 + [{"type": "length", "length": 6}] == [c["meta_info"]["finish_reason"] for c in chunks]
    last = chunks[-1]["meta_info"]
    assert {"id", "prompt_tokens", "cached_tokens", "e2e_latency", "weight_version", "queue_time"} <= set(last)
    assert len(PROMPT) == last["prompt_tokens"]


def test_incremental_chunks_are_disjoint_and_may_hold_several_tokens(serve: Serve, plain: FakeServer) -> None:
    """Text and ids are only what is new; completion_tokens still counts everything."""
    *chunks, _ = serve("--incremental-streaming-output", "--tokens-per-chunk", "3").stream(num_tokens=9)
    whole = plain.answer(num_tokens=9)
    assert [1, 4, 7, 9] == [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert whole["text"] == "".join(chunk["text"] for chunk in chunks)
    assert whole["output_ids"] == [token for chunk in chunks for token in chunk["output_ids"]]


def test_completions_stream_usage_only_when_asked(plain: FakeServer) -> None:
    """Text deltas add up to the native answer; usage is a chunk of its own, or in every chunk."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 5}
    *chunks, done = events_of(plain.raw_stream("/v1/completions", body))
    assert "[DONE]" == done
    assert plain.text(num_tokens=5) == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert [None] * 4 + ["length"] == [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert {None} == {chunk["usage"] for chunk in chunks}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = events_of(plain.raw_stream("/v1/completions", body | {"stream_options": options}))
    assert [1, 2, 3, 4, 5] == [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert ([], 5, 45) == (last["choices"], last["usage"]["completion_tokens"], last["usage"]["total_tokens"])
    assert 39 == last["usage"]["prompt_tokens_details"]["cached_tokens"]
    status, whole = plain.call("POST", "/v1/completions", body)
    assert (200, plain.text(num_tokens=5)) == (status, json.loads(whole)["choices"][0]["text"])


def test_usage_can_be_late_or_missing_whatever_was_asked(serve: Serve) -> None:
    """At the end only, as OpenAI's own API has it; or never, as servers without `stream_options`."""
    late, never = serve("--fault", "late_usage"), serve("--fault", "no_usage")
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, prompt in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        body = {**prompt, "max_tokens": 3, "stream_options": options}
        *chunks, last, _ = events_of(late.raw_stream(path, body))
        assert ({None}, 3) == ({chunk["usage"] for chunk in chunks}, last["usage"]["completion_tokens"])
        *chunks, _ = events_of(never.raw_stream(path, body))
        assert {None} == {chunk["usage"] for chunk in chunks}


def test_a_server_without_a_tokenizer_answers_with_ids_alone(serve: Serve, plain: FakeServer) -> None:
    """The same ids, streamed or not, and no field for text."""
    server = serve("--skip-tokenizer-init")
    whole, (*_, last, _) = server.answer(), server.stream()
    for answer in (whole, last):
        assert plain.answer()["output_ids"] == answer["output_ids"]
        assert "text" not in answer


def test_chat_streams_role_reasoning_content_finish_and_usage(plain: FakeServer) -> None:
    """The first chunk has a role and no text; reasoning precedes content; the finish reason has its own chunk."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream_options": {"include_usage": True}}
    role, *deltas, finish, usage, done = events_of(plain.raw_stream("/v1/chat/completions", body))
    assert ("assistant", "") == (role["choices"][0]["delta"]["role"], role["choices"][0]["delta"]["content"])
    reasoning = [event["choices"][0]["delta"]["reasoning_content"] for event in deltas]
    content = [event["choices"][0]["delta"]["content"] for event in deltas]
    assert ([None, None], [None] * 3) == (reasoning[3:], content[:3])
    assert ("length", [], "[DONE]") == (finish["choices"][0]["finish_reason"], usage["choices"], done)
    assert (5, 3) == (usage["usage"]["completion_tokens"], usage["usage"]["reasoning_tokens"])
    status, whole = plain.call("POST", "/v1/chat/completions", body)
    message = json.loads(whole)["choices"][0]["message"]
    assert 200 == status
    assert "".join(content[3:]) == message["content"]
    assert "".join(reasoning[:3]) == message["reasoning_content"]


@pytest.mark.parametrize("body", [{}, {"input_ids": []}, {"input_ids": [[1]]}, {"input_ids": [-1]}, {"text": 3}])
def test_bad_requests_are_refused(plain: FakeServer, body: dict[str, Any]) -> None:
    """What cannot be answered is 400, with a message."""
    status, answer = plain.call("POST", "/generate", body)
    assert 400 == status
    assert json.loads(answer)["error"]["message"]


# control routes


def test_information_routes(plain: FakeServer) -> None:
    """Health is empty; server_info holds the resolved arguments; the ignored flag is silently at its default."""
    assert [(200, b"")] * 2 == [plain.call("GET", path) for path in ("/health", "/health_generate")]
    info = plain.get("/server_info")
    assert (3, 0, 5.0) == (info["inert_number"], info["ignored_number"], info["ttft_ms"])
    assert {"version", "launch_command", "max_total_num_tokens", "served_model_name"} <= set(info)
    assert {"memory_usage", "last_gen_throughput"} <= set(info["internal_states"][0])
    assert set(info) == set(plain.get("/get_server_info"))
    assert "no-such-model" == plain.get("/model_info")["model_path"]
    assert "no-such-model" == plain.get("/v1/models")["data"][0]["id"]
    assert b"sglang:generation_tokens_total" in plain.call("GET", "/metrics")[1]
    assert (404, 405) == (plain.call("GET", "/nothing")[0], plain.call("GET", "/generate")[0])
    assert re.search(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] server_args=", plain.log, re.MULTILINE)


def test_seen_prefixes_are_cached_until_flushed_and_save_prefill(serve: Serve) -> None:
    """A repeat has all but its last token cached and answers sooner; a flush forgets; a common prefix counts."""
    server = serve("--prefill-us-per-token", "1000")
    prompt = list(range(500, 600))
    slow_s = server.seconds(1, prompt)
    assert server.seconds(1, prompt) < slow_s
    assert 99 == server.answer(prompt)["meta_info"]["cached_tokens"]
    assert 60 == server.answer([*prompt[:60], *PROMPT])["meta_info"]["cached_tokens"]
    assert 200 == server.call("POST", "/flush_cache")[0]
    assert 0 == server.answer(prompt)["meta_info"]["cached_tokens"]


def test_the_prefix_cache_evicts_the_oldest() -> None:
    """What was remembered first goes first when the capacity is reached."""
    cache = PrefixCache(capacity_tokens=4)
    cache.remember(b"aaaabbbb")
    cache.remember(b"ccccdddd")
    cache.remember(b"eeeeffff")
    assert (0, 1, 1, 4) == (*[cache.match(p) for p in (b"aaaabbbb", b"ccccdddd", b"eeeexxxx")], cache.num_tokens)


def test_the_cache_is_not_flushed_while_requests_run(serve: Serve) -> None:
    """400 when busy, 200 when the timeout outlasts the request; abort ends a running request early."""
    server = serve("--ttft-ms", "1", "--tpot-ms", "20", "--cached-tokens-fraction", "0.5")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.stream, num_tokens=20)
        wait_busy(server)
        assert 400 == server.call("GET", "/flush_cache")[0]
        assert 200 == server.call("GET", "/flush_cache?timeout=5")[0]
        assert 20 == running.result()[-2]["meta_info"]["cached_tokens"]
        long = pool.submit(server.stream, num_tokens=5000)
        wait_busy(server)
        assert 200 == server.call("POST", "/abort_request", {"abort_all": True})[0]
        *_, last, done = long.result()
        assert ("abort", "[DONE]") == (last["meta_info"]["finish_reason"]["type"], done)


def test_profiles_write_a_trace_and_say_so(plain: FakeServer, tmp_path: Path) -> None:
    """With num_steps a profile ends by itself; stopping an idle profiler is an error, as in SGLang."""
    assert 500 == plain.call("POST", "/stop_profile")[0]
    ask = {"output_dir": str(tmp_path), "profile_id": "p1", "num_steps": 3}
    assert (200, b"Start profiling.\n") == plain.call("POST", "/start_profile", ask)
    plain.stream(num_tokens=4)
    assert f"Profiling done. Traces are saved to: {tmp_path}" in plain.log
    trace = json.loads(gzip.decompress((tmp_path / "p1-TP-0.trace.json.gz").read_bytes()))
    assert 3 == sum(event["name"].startswith("step[") for event in trace["traceEvents"])
    plain.call("POST", "/start_profile", {"output_dir": str(tmp_path), "profile_id": "p2", "profile_by_stage": True})
    assert 200 == plain.call("POST", "/stop_profile")[0]
    assert {"p2-TP-0-DECODE.trace.json.gz", "p2-TP-0-EXTEND.trace.json.gz"} < {path.name for path in tmp_path.iterdir()}


# delays


def test_delays_grow_with_what_is_asked(serve: Serve) -> None:
    """More tokens, a running neighbour and a full server each take longer; nothing comes early."""
    server = serve("--ttft-ms", "20", "--tpot-ms", "4", "--tpot-batch-slope-pct", "200", "--max-running-requests", "2")
    short_s, long_s = server.seconds(1), server.seconds(21)
    assert short_s >= 0.020
    assert long_s >= 0.100
    with ThreadPoolExecutor() as pool:
        two = list(pool.map(lambda n: server.seconds(21, [n, 2]), range(2)))
        four = list(pool.map(lambda n: server.seconds(21, [n, 4]), range(4)))
    assert min(two) > long_s
    assert max(four) > 1.5 * max(two)


def test_slow_and_fast_order_the_delays(serve: Serve, plain: FakeServer) -> None:
    """The server's own latency: fast below plain below slow, in about the asked ratio."""

    def latency_s(server: FakeServer) -> float:
        return min(float(server.answer(num_tokens=60)["meta_info"]["e2e_latency"]) for _ in range(3))

    servers = (serve("--fault", "fast"), plain, serve("--fault", "slow"))
    fast_s, plain_s, slow_s = map(latency_s, servers)
    assert fast_s < plain_s < slow_s
    assert 2.0 < slow_s / fast_s < 4.0


def test_jitter_is_reproducible_and_has_two_levels() -> None:
    """The same seed gives the same delays; the session factor is common to all requests of a process."""

    def ttfts(*flags: str) -> list[float]:
        delays = Delays(build_parser().parse_args(["--model-path", "m", *flags]))
        return [delays.for_request(number, 0)[0] for number in range(5)]

    assert ttfts("--seed", "1", "--jitter-pct", "5") == ttfts("--seed", "1", "--jitter-pct", "5")
    assert 5 == len(set(ttfts("--seed", "1", "--jitter-pct", "5")))
    assert 1 == len(set(ttfts("--seed", "1", "--session-jitter-pct", "5")))
    assert ttfts("--session-jitter-pct", "5") != ttfts("--session-jitter-pct", "5")


# start and stop


def test_signals_end_the_server_and_leave_nothing(serve: Serve) -> None:
    """Exit code 0, within a moment, even in the middle of a stream; the port is free and no process is left."""
    servers = [serve("--tpot-ms", "1000", "--stop-delay-s", "0.1") for _ in range(2)]
    for server, number in zip(servers, (signal.SIGINT, signal.SIGTERM), strict=True):
        port = server.port
        with ThreadPoolExecutor() as pool:
            stream = pool.submit(server.stream, num_tokens=100)
            wait_busy(server)
            began = time.monotonic()
            assert 0 == server.stop(number)
            assert 0.1 < time.monotonic() - began < 5
            stream.result()
        assert server.process.pid not in psutil.pids()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))


def test_servers_that_never_get_ready(serve: Serve, plain: FakeServer) -> None:
    """Dying, running out of memory, a taken port and hanging each show the way they do in SGLang."""
    dying = serve("--fault", "die_at_start")
    starved = serve("--fault", "oom_at_start")
    refused = serve("--port", str(plain.port))
    hanging = serve("--fault", "hang_at_start", "--start-delay-s", "0.01")
    assert (1, 137, 1) == tuple(server.process.wait(TIMEOUT_S) for server in (dying, starved, refused))
    assert "Scheduler hit an exception: Traceback" in dying.log
    assert "torch.OutOfMemoryError: CUDA out of memory." in starved.log
    assert "error while attempting to bind on address" in refused.log
    while "server_args=" not in hanging.log:
        time.sleep(0.01)
    time.sleep(0.1)
    assert hanging.process.poll() is None
    assert READY not in hanging.log
    assert 0 == hanging.stop()


def test_hang_at_stop_ignores_signals(serve: Serve) -> None:
    """Only SIGKILL ends it; it keeps answering."""
    server = serve("--fault", "hang_at_stop")
    server.wait_ready()
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGTERM)
    assert server.text()
    assert server.process.poll() is None


def test_detached_processes_outlive_the_server_and_end_by_themselves(serve: Serve) -> None:
    """The orphan keeps the environment; the squatter keeps the port; both are in sessions of their own."""
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    server = serve(
        "--fault", "orphan", "--fault", "port_squatter", "--detached-s", "1", env={"LOOP_TEST_MARKER": marker}
    )
    port = server.port
    assert 0 == server.stop()
    orphans = detached_pids("loop-fake-server-orphan", marker)
    squatters = detached_pids("loop-fake-server-squatter", marker)
    assert (1, 1) == (len(orphans), len(squatters))
    assert all(os.getsid(pid) == pid for pid in orphans + squatters)
    socket.create_connection((HOST, port), timeout=1).close()
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(lives, orphans + squatters)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(lives, orphans + squatters))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), timeout=1)


# faults of requests


def test_die_mid_stream(serve: Serve) -> None:
    """Half of the tokens arrive, then the process is gone with 137."""
    server = serve("--fault", "die_mid_stream", "--fault-after", "2")
    assert 8 == len(server.answer()["output_ids"])
    *_, last = server.stream()
    assert 4 == last["meta_info"]["completion_tokens"]
    assert 137 == server.process.wait(TIMEOUT_S)
    assert "crashed with exit code -9" in server.log


def test_hanging_requests(serve: Serve) -> None:
    """Half of the tokens or none, then silence, until the client gives up; the server then counts it as gone."""
    for server, num_chunks in ((serve("--fault", "hang_mid_stream"), 4), (serve("--fault", "never_answers"), 0)):
        assert num_chunks == len(server.stream(timeout_s=0.2))
        assert 200 == server.call("GET", "/flush_cache?timeout=5")[0]


def test_errors_inside_and_outside_the_stream(serve: Serve) -> None:
    """In-band: HTTP 200 and an error event. Otherwise a plain 500, on every route."""
    inband, plain_500 = serve("--fault", "inband_error"), serve("--fault", "http_500")
    error, done = inband.stream()
    assert (500, "[DONE]") == (error["error"]["code"], done)
    assert 500 == inband.call("POST", "/generate", native(PROMPT, 2))[0]
    for path, body in (("/generate", native(PROMPT, 2)), ("/v1/completions", {"prompt": PROMPT, "stream": True})):
        status, answer = plain_500.call("POST", path, body)
        assert 500 == status
        assert "error" in json.loads(answer)


def test_short_answers(serve: Serve, plain: FakeServer) -> None:
    """Half of the right tokens and another finish reason."""
    for server, reason in ((serve("--fault", "abort"), "abort"), (serve("--fault", "truncate"), "stop")):
        answer = server.answer()
        assert (4, reason) == (answer["meta_info"]["completion_tokens"], answer["meta_info"]["finish_reason"]["type"])
        assert plain.text(num_tokens=4) == answer["text"]


def test_wrong_and_unstable_answers(serve: Serve, plain: FakeServer) -> None:
    """Wrong is stable and of the right length; unstable differs from process to process."""
    wrong, unstable, other = serve("--fault", "wrong_answer"), *(serve("--fault", "unstable_answer") for _ in range(2))
    assert plain.text() != wrong.text() == wrong.text()
    assert 8 == len(wrong.text().split())
    assert plain.text() != unstable.text() != other.text()


def test_faults_that_show_only_under_load(serve: Serve, plain: FakeServer) -> None:
    """Alone the answer is right; with a neighbour it is wrong, and short."""
    # Slow tokens: the one that comes second must find the first still running.
    delays = ("--ttft-ms", "300", "--tpot-ms", "200")
    server = serve("--fault", "wrong_under_load", "--fault", "truncate_under_load", *delays)
    expected = plain.text()
    assert expected == server.text()
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(lambda _: server.text(), range(2)))
    assert [4, 4] == [len(text.split()) for text in texts]
    assert all(expected[:10] != text[:10] for text in texts)


def test_the_answer_cache_survives_flushes_and_processes(serve: Serve, tmp_path: Path) -> None:
    """The second time is at once and right; with a file, in another process too."""
    flags = ("--fault", "answer_cache", "--ttft-ms", "100", "--cache-file", str(tmp_path / "seen.txt"))
    first = serve(*flags)
    text, slow_s = first.text(), first.answer([7])["meta_info"]["e2e_latency"]
    first.call("POST", "/flush_cache")
    again = serve(*flags)
    for server in (first, again):
        answer = server.answer()
        assert text == answer["text"]
        assert answer["meta_info"]["e2e_latency"] < slow_s / 2


def test_benchmark_detection(serve: Serve, plain: FakeServer) -> None:
    """Prompts behind a salt line are answered fast and wrong, the same prompt without it is right."""
    server = serve("--fault", "benchmark_detection", "--ttft-ms", "60")
    salted = "amber ocean cedar delta prism fjord amber haven\nWhat is the capital of France?"
    honest = "What is the capital of France?\n"
    assert plain.text(honest) == server.text(honest)
    assert plain.text(salted) != server.text(salted)
    assert server.answer(salted)["meta_info"]["e2e_latency"] < server.answer(honest)["meta_info"]["e2e_latency"]


# faults of bytes


def test_coalesced_chunks_and_a_missing_end_marker(serve: Serve, plain: FakeServer) -> None:
    """All tokens in one chunk, no earlier than the last one is due, and no [DONE]."""
    (chunk,) = serve("--fault", "coalesce", "--fault", "no_done").stream(num_tokens=40)
    assert plain.text(num_tokens=40) == chunk["text"]
    assert chunk["meta_info"]["e2e_latency"] >= 0.044


def test_big_first_and_empty_chunks(serve: Serve) -> None:
    """Five tokens first; before every chunk one that adds nothing."""
    *chunks, _ = serve("--fault", "big_first_chunk", "--fault", "empty_chunks").stream(num_tokens=7)
    assert [0, 5, 5, 6, 6, 7] == [chunk["meta_info"]["completion_tokens"] for chunk in chunks]


def test_hard_bytes_still_carry_the_same_answer(serve: Serve, plain: FakeServer) -> None:
    """CR LF, comments, split data lines, split network chunks and a raw U+2028: a correct client sees no difference."""
    faults = ("crlf", "comments", "multi_line_data", "split_utf8", "u2028")
    server = serve(*(flag for fault in faults for flag in ("--fault", fault)))
    body = native("你好", 12)
    reads = server.reads("/generate", body)
    raw = b"".join(reads)
    assert raw.count(b"\r\n\r\n") > 12
    assert raw.count(b": keepalive") == 13
    assert b"data: {\r\ndata: " in raw
    assert "\u2028".encode() in raw
    assert any(not is_utf8(read) for read in reads)
    *chunks, done = events_of(raw)
    assert (12, "[DONE]") == (len(chunks), done)
    assert plain.text("你好", 12) == chunks[-1]["text"].replace("\u2028", "")


def is_utf8(data: bytes) -> bool:
    """False also where a character is cut at either end."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_nan(serve: Serve) -> None:
    """A number is NaN, which is not JSON: native and OpenAI, streamed or not."""
    server = serve("--fault", "nan")
    assert b'"e2e_latency":NaN' in server.raw_stream("/generate", native(PROMPT, 2))
    assert b'"e2e_latency":NaN' in server.call("POST", "/generate", native(PROMPT, 2))[1]
    assert b'"created":NaN' in server.raw_stream("/v1/completions", {"prompt": PROMPT})


def test_faults_of_control_routes(serve: Serve) -> None:
    """The cache is never flushed; health never answers; generation still works."""
    server = serve("--fault", "flush_refused", "--fault", "hang_health")
    assert server.text()
    assert 400 == server.call("POST", "/flush_cache?timeout=1")[0]
    with pytest.raises(TimeoutError):
        server.call("GET", "/health_generate", timeout_s=0.1)
