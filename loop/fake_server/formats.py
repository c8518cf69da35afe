"""Answers as bytes: the native format here, the OpenAI ones in `openai_formats`.

Everything that is the same in every chunk of a request is serialized once, when the request starts; a chunk costs a few
concatenations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from loop.fake_server.plans import Plan
from loop.fake_server.vocabulary import Token

WEIGHT_VERSION = "default"


@dataclass(slots=True)
class Times:
    """When what `meta_info` reports happened to a request: seconds since `received_s`, which is monotonic."""

    received_s: float
    received_unix_s: float
    queued_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float = 0.0


class Format(Protocol):
    """One answer in the making. `count` is the number of tokens sent; an answer that is not streamed counts outside."""

    count: int

    def opening(self) -> bytes:
        """What precedes the first token, and leaves with it."""

    def chunk(self, tokens: Sequence[Token], *, last: bool) -> bytes:
        """The event for these new tokens; the finish reason is the plan's if it is the last one."""

    def closing(self) -> bytes:
        """What follows the last chunk, before the end marker."""

    def whole(self) -> bytes:
        """The first `count` tokens as one JSON object."""

    def error(self, message: str, status: int) -> bytes:
        """A JSON object saying so."""


class NativeFormat:
    """`/generate`: text and output_ids repeat what was sent before, unless `incremental`; without `text`, ids alone."""

    def __init__(self, plan: Plan, times: Times, *, incremental: bool, metrics: bool, text: bool = True) -> None:
        self.count = 0
        self._plan = plan
        self._times = times
        self._incremental = incremental
        self._metrics = metrics
        self._with_text = text
        self._text = b""
        self._ids = b""
        order = plan.order
        head = orjson.dumps({"id": order.rid, "finish_reason": None})[:-1]
        counts = {
            "prompt_tokens": len(order.prompt_ids),
            "weight_version": WEIGHT_VERSION,
            "num_retractions": 0,
            "cached_tokens": plan.num_cached,
        }
        self._meta = b'],"meta_info":' + head + b"," + orjson.dumps(counts)[1:-1] + b',"completion_tokens":'

    def opening(self) -> bytes:
        """Always empty: the first chunk is complete by itself."""
        return b""

    def chunk(self, tokens: Sequence[Token], *, last: bool) -> bytes:
        """Adds to `count`; with no tokens it repeats the counts so far."""
        return b"data: " + self._object(tokens, last=last) + b"\n\n"

    def closing(self) -> bytes:
        """Always empty: the last chunk carries the finish reason and the latencies."""
        return b""

    def whole(self) -> bytes:
        """To be called once, and not after `chunk`: both append to the same text."""
        tokens, self.count = self._plan.tokens[: self.count], 0
        return self._object(tokens, last=True)

    def error(self, message: str, status: int) -> bytes:
        """The same object in an event and as a body; never retryable."""
        return orjson.dumps(
            {"error": {"message": message, "type": error_type(status), "code": status, "retryable": False}}
        )

    def _object(self, tokens: Sequence[Token], *, last: bool) -> bytes:
        self.count += len(tokens)
        if len(tokens) == 1:
            _, _, text, ids = tokens[0]
        else:
            text = b"".join([token.json_text for token in tokens])
            ids = b",".join([token.json_id for token in tokens])
        if not self._incremental:
            self._text = text = self._text + text
            self._ids = ids = self._ids + b"," + ids if self._ids and ids else self._ids or ids
        said = b'"text":"%b",' % text if self._with_text else b""
        body = b'{%b"output_ids":[%b%b%d' % (said, ids, self._meta, self.count)
        return self._finished(body) if last else body + b"}}"

    def _finished(self, body: bytes) -> bytes:
        reason = orjson.dumps(self._plan.finish)
        place = body.rindex(b'"finish_reason":null') + len(b'"finish_reason":')
        more = orjson.dumps(self._final_fields())[1:]
        return body[:place] + reason + body[place + len(b"null") :] + b"," + more + b"}"

    def _final_fields(self) -> dict[str, Any]:
        times = self._times
        fields: dict[str, Any] = {"e2e_latency": times.ended_s}
        if self._metrics:
            first_s = times.first_token_s if times.first_token_s is not None else times.ended_s
            decode_s = times.ended_s - first_s
            fields |= {
                "queue_time": times.queued_s,
                "first_token_latency": first_s,
                "request_received_ts": times.received_unix_s,
                "forward_entry_time": times.received_unix_s + times.queued_s,
                "prefill_finished_time": times.received_unix_s + first_s,
                "request_finished_ts": times.received_unix_s + times.ended_s,
                "decode_throughput": (self.count - 1) / decode_s if decode_s > 0 else None,
            }
        return fields


def error_type(status: int) -> str:
    """SGLang's name for an HTTP status."""
    return "invalid_request_error" if status < 500 else "internal_error"
