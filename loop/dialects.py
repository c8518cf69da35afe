"""How each HTTP API streams a generation: what to send, and what its events mean.

A dialect reads the events of one response. It decodes the first events at once, to see the first token; after that
it keeps bytes and decodes at the end, so that a timed client spends its time on the network and not on JSON.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

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


class Chunk(BaseModel):
    """The fields of an event that matter; servers send many more."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


ChunkT = TypeVar("ChunkT", bound=Chunk)


class Finish(Chunk):
    """SGLang's finish reason."""

    type: str


class MetaInfo(Chunk):
    """SGLang's `meta_info`. Counts are cumulative."""

    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    e2e_latency: float | None = None
    finish_reason: Finish | None = None


class GenerateChunk(Chunk):
    """An event of `/generate`."""

    text: str = ""
    output_ids: list[int] = []
    meta_info: MetaInfo = MetaInfo()


class Choice(Chunk):
    """A choice of an OpenAI completion chunk."""

    text: str | None = None
    finish_reason: str | None = None


class PromptDetails(Chunk):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(Chunk):
    """Token counts as OpenAI names them."""

    completion_tokens: int = 0
    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class CompletionChunk(Chunk):
    """An event of `/v1/completions`."""

    choices: list[Choice] = []
    usage: Usage | None = None


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

    def _decode(self, data: bytes, kind: type[ChunkT]) -> ChunkT | None:
        """One event as a chunk; an in-band error, bad JSON or a field of another type becomes a failure."""
        try:
            document = orjson.loads(data)
            if isinstance(document, dict) and document.get("error"):
                self.fail("inband_error", str(document["error"]))
                return None
            return kind.model_validate(document)
        except (orjson.JSONDecodeError, ValidationError) as problem:
            self.fail("parse", f"{data[:200]!r}: {problem}")
            return None

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
        chunk = self._decode(data, GenerateChunk)
        if chunk is not None:
            self._take(at_ns, chunk)

    def finish(self) -> None:
        """Decode the kept chunks in order."""
        kept, self._kept = self._kept, []
        for at_ns, data in kept:
            chunk = self._decode(data, GenerateChunk)
            if chunk is not None:
                self._take(at_ns, chunk)

    def _take(self, at_ns: int, chunk: GenerateChunk) -> None:
        meta, ids = chunk.meta_info, chunk.output_ids
        count = meta.completion_tokens
        if ids and self.output_ids and self._cumulative is None:
            # Cumulative chunks grow with the count; disjoint ones hold only what is new.
            self._cumulative = len(ids) == count
        if ids and self._cumulative:
            self.text, self.output_ids = chunk.text, ids
        elif ids:
            self.text += chunk.text
            self.output_ids += ids
        if count > (self.num_tokens or 0):
            self._saw_tokens(at_ns, count)
            self.num_tokens = count
        self.num_prompt_tokens = _latest(meta.prompt_tokens, self.num_prompt_tokens)
        self.num_cached_tokens = _latest(meta.cached_tokens, self.num_cached_tokens)
        self.server_e2e_s = _latest(meta.e2e_latency, self.server_e2e_s)
        self.finish_reason = meta.finish_reason.type if meta.finish_reason else self.finish_reason


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
            chunk = self._decode(data, CompletionChunk)
            if chunk is not None:
                self._take(at_ns, chunk)

    def _take(self, at_ns: int, chunk: CompletionChunk) -> None:
        usage = chunk.usage or Usage()
        for choice in chunk.choices:
            if choice.text:
                self.text += choice.text
                self._saw_tokens(at_ns, max(usage.completion_tokens, 1))
            self.finish_reason = choice.finish_reason or self.finish_reason
        self.num_tokens = usage.completion_tokens or self.num_tokens
        self.num_prompt_tokens = _latest(usage.prompt_tokens, self.num_prompt_tokens)
        details = usage.prompt_tokens_details or PromptDetails()
        self.num_cached_tokens = _latest(details.cached_tokens, self.num_cached_tokens)


T = TypeVar("T")


def _latest(new: T | None, old: T | None) -> T | None:
    """What the last chunk that said anything said."""
    return old if new is None else new


DIALECTS: dict[str, type[Dialect]] = {"generate": Generate, "completions": Completions}
