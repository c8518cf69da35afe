"""A reply: one request as the client saw it, raw. Times are nanoseconds from the start of the step."""

import math
from pathlib import Path
from typing import Literal

import orjson
import zstandard

from loop.record import Record

Failure = Literal[
    "connect", "reset", "http_status", "inband_error", "aborted", "truncated", "no_end_marker", "idle_timeout",
    "deadline", "parse", "length_mismatch", "prompt_mismatch",
]  # fmt: skip
"""Why a request did not succeed. Nothing is retried: a retry would hide the failure in a latency."""


class Reply(Record):
    """One request: when it was sent, what came back and when, and why it failed if it did."""

    rid: str
    sent_ns: int | None = None
    """When the body was written to an open connection."""
    first_ns: int | None = None
    """The network read that held the first generated token."""
    last_ns: int | None = None
    """The network read that held the last generated token."""
    done_ns: int | None = None
    """The end of the response."""
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None
    """Generated tokens as the server counts them."""
    num_first_tokens: int | None = None
    """Tokens in the first read: more than one under speculative decoding."""
    num_cached_tokens: int | None = None
    num_chunks: int = 0
    finish_reason: str | None = None
    server_e2e_s: float | None = None
    """The server's own end-to-end time, to tell the client's share."""
    text: str = ""
    output_ids: tuple[int, ...] = ()
    failure: Failure | None = None
    error: str = ""
    """The first 500 characters of what went wrong."""

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token: `first_content - sent`."""
        return _span_ms(self.sent_ns, self.first_ns)

    @property
    def e2e_ms(self) -> float | None:
        """End to end: `last_content - sent`."""
        return _span_ms(self.sent_ns, self.last_ns)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first read; None when every token came in it."""
        if self.num_tokens is None or self.num_first_tokens is None or self.num_tokens <= self.num_first_tokens:
            return None
        span = _span_ms(self.first_ns, self.last_ns)
        return None if span is None else span / (self.num_tokens - self.num_first_tokens)


def write_replies(path: Path, replies: list[Reply]) -> None:
    """Replies as zstd-compressed JSON lines."""
    lines = b"\n".join(orjson.dumps(reply.model_dump(mode="json")) for reply in replies)
    path.write_bytes(zstandard.ZstdCompressor(level=3).compress(lines))


def read_replies(path: Path) -> tuple[Reply, ...]:
    """The replies that `write_replies` wrote, in sending order."""
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    return tuple(Reply.model_validate(orjson.loads(line)) for line in lines.split(b"\n") if line)


def _span_ms(start_ns: int | None, end_ns: int | None) -> float | None:
    if start_ns is None or end_ns is None:
        return None
    span = (end_ns - start_ns) / 1e6
    return span if math.isfinite(span) else None
