"""A reply: one request as the client saw it, raw. Times are nanoseconds from the start of the step."""

import math
from pathlib import Path
from typing import Literal

import orjson
import zstandard

from loop.record import Record

Failure = Literal[
    "connect", "reset", "http_status", "inband_error", "aborted", "truncated", "no_end_marker", "idle_timeout",
    "deadline", "parse", "length_mismatch", "prompt_mismatch", "no_usage",
]  # fmt: skip
"""Why a request did not succeed. Nothing is retried: a retry would hide the failure in a latency."""


class Reply(Record):
    """One request: when it was sent, what came back and when, and why it failed if it did."""

    rid: str
    scheduled_ns: int | None = None
    """When it was due; None in a closed loop, where a request is due when the one before it has ended."""
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
    """Tokens in the first read: more than one under speculative decoding. None where nobody can tell."""
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
    def is_heldback(self) -> bool:
        """Whether it answers a held-back prompt; said of the replies of a correctness step."""
        return self.rid.startswith("heldback-")

    @property
    def is_canary(self) -> bool:
        """Whether it answers a canary. No workload can be called so: a session's label has a capital letter."""
        return self.rid.startswith(("canary-A", "canary-B"))

    @property
    def due_ns(self) -> int | None:
        """When its user began to wait: as scheduled, however late the client was; as sent in a closed loop.

        Counted from sending, the wait behind a stalled client or server would be omitted (coordinated omission).
        """
        return self.sent_ns if self.scheduled_ns is None else self.scheduled_ns

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token: `first_content - due`."""
        return _span_ms(self.due_ns, self.first_ns)

    @property
    def e2e_ms(self) -> float | None:
        """End to end: `last_content - due`."""
        return _span_ms(self.due_ns, self.last_ns)

    @property
    def sent_to_first_ms(self) -> float | None:
        """`first_content - sent`, whenever it was due."""
        return _span_ms(self.sent_ns, self.first_ns)

    @property
    def sent_to_last_ms(self) -> float | None:
        """`last_content - sent`, whenever it was due."""
        return _span_ms(self.sent_ns, self.last_ns)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first read; None when every token came in it, or if that cannot be told."""
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
