"""What tests of the timed client share: fake servers by their flags, answers by their bytes, jobs for a client.

The fixtures that go with it are in `tests/wire_fixtures.py`.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from loop.client import Job
from loop.client_report import ClientReport
from loop.dialects import Request
from loop.fake_server.vocabulary import internal_vocabulary
from loop.measure import ClientProcess
from loop.replies import Reply, read_replies
from loop.watch import Watcher

READY = "The server is fired up and ready to roll!"
QUICK = ("--tpot-ms", "0.2", "--ttft-ms", "2")
WORDS, CJK = tuple(range(300, 324)), (0x4E16, 0x754C, *range(300, 322))
NUM_TOKENS = 12
VOCABULARY = internal_vocabulary()
DIALECTS = ["generate", "completions", "chat"]
PAUSE_S = 0.25
"""Between two pieces of a canned answer: far more than the client needs to read one."""
DONE = b"data: [DONE]\n\n"
Send = Callable[..., tuple[list[Reply], ClientReport]]
Serve = Callable[..., int]
Canned = Callable[..., int]

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

    def ready(self, *several: tuple[str, ...]) -> None:
        """Start them side by side, and wait for all."""
        for flags in several:
            self.start(*flags)
        for flags in several:
            self.port(*flags)

    def kill(self, *flags: str) -> None:
        """Kill one, if it is still there."""
        with suppress(ProcessLookupError):
            os.kill(self._pids[flags], signal.SIGKILL)

    def stop(self) -> None:
        """End them all."""
        for flags in self._pids:
            self.kill(*flags)
        self._nursery.communicate()


def quick(*faults: str, flags: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The flags of a server without delays to speak of, with these faults and further flags."""
    return (*QUICK, *(part for fault in faults for part in ("--fault", fault)), *flags)


def job_for(port: int, requests: Sequence[Request], **settings: Any) -> Job:
    """Requests to a port, one at a time and by `/generate` unless the settings say otherwise."""
    usual = {"dialect": "generate", "concurrency": 1, "idle_timeout_s": 10.0, "deadline_s": 20.0}
    return Job.model_validate({"host": "127.0.0.1", "port": port, "requests": tuple(requests), **usual, **settings})


def send_job(
    client: ClientProcess, directory: Path, port: int, requests: Sequence[Request], **settings: Any
) -> tuple[list[Reply], ClientReport]:
    """Have requests sent by this client process."""
    (directory / "job.json").write_text(job_for(port, requests, **settings).model_dump_json())
    report = client.send(directory / "job.json", directory / "replies.jsonl.zst", Watcher())
    return list(read_replies(directory / "replies.jsonl.zst")), report


def request(rid: str = "r0", ids: tuple[int, ...] = WORDS, num_tokens: int = NUM_TOKENS, **fields: Any) -> Request:
    """A request for exactly `num_tokens` tokens."""
    text = VOCABULARY.decode(ids)
    usual = {"rid": rid, "input_ids": ids, "text": text, "max_new_tokens": num_tokens, "ignore_eos": True}
    return Request.model_validate({**usual, **fields})


def several(number: int, num_tokens: int = NUM_TOKENS) -> list[Request]:
    """Requests with different prompts."""
    return [request(f"r{index:02d}", (*WORDS, 400 + index), num_tokens) for index in range(number)]


def received_request(connection: socket.socket) -> bytes:
    """One whole request with a JSON body, or nothing if the client hangs up."""
    received = b""
    while b"\r\n\r\n" not in received or not received.endswith(b"}"):
        if not (read := connection.recv(1 << 16)):
            break
        received += read
    return received


def http(body: bytes = b"", *, status: str = "200 OK", more: int = 0) -> bytes:
    """A response with this body; it claims `more` bytes than it has."""
    return f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body) + more}\r\n\r\n".encode() + body


def stream(*pieces: bytes) -> tuple[bytes, ...]:
    """The pieces of a response whose head comes with the first one."""
    first, *others = pieces
    return (http(first, more=sum(map(len, others))), *others)


def data(document: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def event(**fields: Any) -> bytes:
    """One native event, of a whole answer unless `fields` say otherwise."""
    meta = {"prompt_tokens": len(WORDS), "completion_tokens": NUM_TOKENS, "finish_reason": {"type": "length"}}
    return data({"text": "a b", "output_ids": list(range(NUM_TOKENS)), "meta_info": meta | fields})


def native(count: int, ids: Sequence[int], *, last: bool = False, **fields: Any) -> bytes:
    """One native event of a stream that has come to `count` tokens."""
    finish = {"type": "length"} if last else None
    meta = {"prompt_tokens": len(WORDS), "completion_tokens": count, "finish_reason": finish}
    return data({"output_ids": list(ids), "meta_info": meta, **fields})


def completion(text: str, *, usage: int | None = None, finish: str | None = None) -> bytes:
    """One chunk of `/v1/completions`, with the number of tokens so far if `usage` has it."""
    return data({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": counts(usage)})


def chat(*, usage: int | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """One chunk of `/v1/chat/completions`."""
    return data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": counts(usage)})


def usage_only(num_tokens: int, num_prompt_tokens: int = len(WORDS)) -> bytes:
    """The chunk after the last one, if `include_usage` was asked for."""
    return data({"choices": [], "usage": counts(num_tokens, num_prompt_tokens)})


def counts(num_tokens: int | None, num_prompt_tokens: int = len(WORDS)) -> dict[str, Any] | None:
    """Usage, or None for none."""
    return None if num_tokens is None else {"completion_tokens": num_tokens, "prompt_tokens": num_prompt_tokens}
