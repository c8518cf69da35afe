"""How each HTTP API streams a generation: what to send, and what its events mean.

A dialect reads the events of one response. It decodes the first events at once, to see the first token; after that
it keeps bytes and decodes at the end, so that a timed client spends its time on the network and not on JSON.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import orjson

from loop.record import Record
from loop.replies import Failure

END_MARKER = b"[DONE]"


class Request(Record):
    """One generation to ask for. Greedy always: temperature 0."""

    rid: str
    input_ids: tuple[int, ...]
    max_new_tokens: int
    ignore_eos: bool
    """Timed traffic generates an exact number of tokens."""


class Dialect(ABC):
    """The events of one response, understood."""

    path: ClassVar[str]

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.num_chunks = 0
        self.num_tokens: int | None = None
        self.num_first_tokens: int | None = None
        self.num_prompt_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self.server_e2e_s: float | None = None
        self.finish_reason: str | None = None
        self.text = ""
        self.output_ids: list[int] = []
        self.ended = False
        self.failure: Failure | None = None
        self.error = ""

    @staticmethod
    @abstractmethod
    def body(request: Request) -> dict[str, Any]:
        """The JSON body that asks for `request` as a stream."""

    @abstractmethod
    def event(self, at_ns: int, data: bytes) -> None:
        """Take the data of one event that arrived at `at_ns`."""

    @abstractmethod
    def finish(self) -> None:
        """The response is over: decode what was kept."""

    def fail(self, failure: Failure, error: str) -> None:
        """The first failure stands."""
        if self.failure is None:
            self.failure, self.error = failure, error[:500]

    def _decode(self, data: bytes) -> dict[str, Any] | None:
        """One event's JSON object; an in-band error or bad JSON becomes a failure."""
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError as problem:
            self.fail("parse", f"{problem}: {data[:200]!r}")
            return None
        if not isinstance(document, dict):
            self.fail("parse", f"an event is {type(document).__name__}, not an object")
            return None
        if document.get("error"):
            self.fail("inband_error", str(document["error"]))
            return None
        return document

    def _saw_tokens(self, at_ns: int, num_tokens: int) -> None:
        if self.first_ns is None:
            self.first_ns, self.num_first_tokens = at_ns, num_tokens
        self.last_ns = at_ns


class Generate(Dialect):
    """SGLang's native `/generate`: token ids in; text, ids and counts out, cumulative unless the server is asked."""

    path = "/generate"

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[int, bytes]] = []
        self._cumulative: bool | None = None

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        """Token ids, so that no tokenizer stands between two arms."""
        sampling = {"temperature": 0.0, "max_new_tokens": request.max_new_tokens, "ignore_eos": request.ignore_eos}
        return {
            "rid": request.rid,
            "input_ids": list(request.input_ids),
            "sampling_params": sampling,
            "stream": True,
        }

    def event(self, at_ns: int, data: bytes) -> None:
        """Cumulative chunks repeat all before them: only the last two matter, and are decoded at the end."""
        if data == END_MARKER:
            self.ended = True
            return
        self.num_chunks += 1
        if self._cumulative and not data.startswith(b'{"error"'):
            self._kept = [*self._kept[-1:], (at_ns, data)]
            return
        document = self._decode(data)
        if document is not None:
            self._take(at_ns, document)

    def finish(self) -> None:
        """Decode the kept chunks in order."""
        kept, self._kept = self._kept, []
        for at_ns, data in kept:
            document = self._decode(data)
            if document is not None:
                self._take(at_ns, document)

    def _take(self, at_ns: int, document: dict[str, Any]) -> None:
        meta = document.get("meta_info") or {}
        ids = document.get("output_ids") or []
        count = int(meta.get("completion_tokens") or 0)
        if ids and self.output_ids and self._cumulative is None:
            # Cumulative chunks grow with the count; disjoint ones hold only what is new.
            self._cumulative = len(ids) == count
        if ids and self._cumulative:
            self.text, self.output_ids = document.get("text") or "", ids
        elif ids:
            self.text += document.get("text") or ""
            self.output_ids += ids
        if count > (self.num_tokens or 0):
            self._saw_tokens(at_ns, count)
            self.num_tokens = count
        self.num_prompt_tokens = meta.get("prompt_tokens", self.num_prompt_tokens)
        self.num_cached_tokens = meta.get("cached_tokens", self.num_cached_tokens)
        self.server_e2e_s = meta.get("e2e_latency", self.server_e2e_s)
        reason = meta.get("finish_reason")
        if reason:
            self.finish_reason = reason.get("type") if isinstance(reason, dict) else str(reason)


class Completions(Dialect):
    """OpenAI `/v1/completions`: one delta a chunk, counts in the last one."""

    path = "/v1/completions"

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[int, bytes]] = []

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        """The prompt as token ids, usage always asked for: without it output lengths would be a guess."""
        return {
            "model": "default",
            "prompt": list(request.input_ids),
            "temperature": 0.0,
            "max_tokens": request.max_new_tokens,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

    def event(self, at_ns: int, data: bytes) -> None:
        """Deltas are small: all are kept, and decoded at the end."""
        if data == END_MARKER:
            self.ended = True
            return
        self.num_chunks += 1
        self._kept.append((at_ns, data))

    def finish(self) -> None:
        """Decode the kept chunks in order."""
        kept, self._kept = self._kept, []
        for at_ns, data in kept:
            document = self._decode(data)
            if document is not None:
                self._take(at_ns, document)

    def _take(self, at_ns: int, document: dict[str, Any]) -> None:
        usage = document.get("usage") or {}
        count = int(usage.get("completion_tokens") or 0)
        for choice in document.get("choices") or ():
            content = self._content(choice)
            if content:
                self.text += content
                self._saw_tokens(at_ns, max(count, 1))
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]
        if count:
            self.num_tokens = count
        self.num_prompt_tokens = usage.get("prompt_tokens", self.num_prompt_tokens)
        details = usage.get("prompt_tokens_details") or {}
        self.num_cached_tokens = details.get("cached_tokens", self.num_cached_tokens)

    @staticmethod
    def _content(choice: dict[str, Any]) -> str:
        return choice.get("text") or ""


DIALECTS: dict[str, type[Dialect]] = {"generate": Generate, "completions": Completions}
