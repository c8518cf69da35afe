"""The bound: a client that counts events and takes two times a request, and understands nothing.

`python -m tests.perf.raw_reader PORT NUM_STREAMS NUM_TOKENS PROMPTS RESULT`: every prompt of the JSON list is sent to
`/v1/completions` once, so many at a time.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

EVENT_END = b"}\n\n"
"""Of every event but `[DONE]`. It may be cut by the end of a read."""
RESPONSE_END = b"0\r\n\r\n"


class Reader(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def send(self, request: bytes) -> asyncio.Future[None]:
        """The future resolves at the end of the response."""
        self.num_events = 0
        self.first_s = self.last_s = 0.0
        self._tail = b""
        self._done = asyncio.get_running_loop().create_future()
        self.sent_s = time.perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]
        return self._done

    def data_received(self, data: bytes) -> None:
        """Count the events that end in this read."""
        now_s = time.perf_counter()
        seen = self._tail + data
        self._tail = seen[1 - len(EVENT_END) :]
        num_events = seen.count(EVENT_END)
        if num_events:
            self.num_events += num_events
            self.first_s = self.first_s or now_s
            self.last_s = now_s
        if data.endswith(RESPONSE_END):
            self._done.set_result(None)


async def read_all(port: int, num_streams: int, num_tokens: int, prompts: list[str]) -> dict[str, float]:
    """Send every prompt; what was seen."""
    loop = asyncio.get_running_loop()
    requests = iter([request_for(prompt, num_tokens) for prompt in prompts])
    readers = [(await loop.create_connection(Reader, "127.0.0.1", port))[1] for _ in range(num_streams)]
    ttfts_ms: list[float] = []
    tpots_ms: list[float] = []
    counts: list[int] = []

    async def stream(reader: Reader, requests: Iterator[bytes]) -> None:
        for request in requests:
            await reader.send(request)
            counts.append(reader.num_events)
            ttfts_ms.append((reader.first_s - reader.sent_s) * 1e3)
            tpots_ms.append((reader.last_s - reader.first_s) * 1e3 / max(1, reader.num_events - 1))

    start_s = time.perf_counter()
    await asyncio.gather(*(stream(reader, requests) for reader in readers))
    return {
        "duration_s": time.perf_counter() - start_s,
        "num_tokens": sum(counts),
        "ttft_p50_ms": median(ttfts_ms),
        "tpot_p50_ms": median(tpots_ms),
    }


def request_for(prompt: str, num_tokens: int) -> bytes:
    """The bytes of one request."""
    wanted = {"model": "fake", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(wanted).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def main(port: str, num_streams: str, num_tokens: str, prompts: str, result: str) -> None:
    texts = json.loads(Path(prompts).read_text())
    seen = uvloop.run(read_all(int(port), int(num_streams), int(num_tokens), texts))
    Path(result).write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
