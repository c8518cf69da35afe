"""A dialect: how one HTTP API streams a generation. One file per dialect; its stem is its name.

A dialect says what to send, and reads the events of one response in their order, each with the time at which it came.
It is given them when no time is taken any more (`loop/backlog.py`), so it must not ask what time it is.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import msgspec

from loop.record import Record
from loop.replies import Failure

END_MARKER = b"[DONE]"


class Request(Record):
    """One generation to ask for. Greedy always: temperature 0."""

    rid: str
    input_ids: tuple[int, ...]
    """The prompt in the model's own tokens; where `text` is sent, the tokens of that text alone."""
    max_new_tokens: int
    ignore_eos: bool
    """Timed traffic generates an exact number of tokens."""
    text: str | None = None
    """The prompt as text, for a dialect that sends messages."""


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The fields that matter of something in an event; servers send many more."""


class Event(Chunk, frozen=True, gc=False):
    """One event. `error` is how a server fails after it has answered HTTP 200."""

    error: Any = None


EventT = TypeVar("EventT", bound=Event)


class Dialect(ABC):
    """The events of one response, understood."""

    path: ClassVar[str]

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.num_chunks = 0
        self.num_tokens: int | None = None
        """As the server counts them; None while it has not."""
        self.num_first_tokens: int | None = None
        """In the first read; None where nobody can tell."""
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
        """Take the data of one event that arrived in the network read at `at_ns`."""

    @abstractmethod
    def finish(self) -> None:
        """There are no more events: put together what was kept."""

    @staticmethod
    def saw_all_of(request: Request, num_prompt_tokens: int) -> bool:
        """Whether a prompt that the server counts so many tokens in can be the request's: it was given exact tokens."""
        return num_prompt_tokens == len(request.input_ids)

    def fail(self, failure: Failure, error: str) -> None:
        """The first failure stands."""
        if self.failure is None:
            self.failure, self.error = failure, error[:500]

    def decode(self, decoder: msgspec.json.Decoder[EventT], data: bytes) -> EventT | None:
        """One event; an in-band error, bad JSON or a field of another type becomes a failure."""
        try:
            event = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            self.fail("parse", f"{data[:200]!r}: {problem}")
            return None
        if event.error:
            self.fail("inband_error", str(event.error))
            return None
        return event

    def saw_tokens(self, at_ns: int, num_tokens: int | None) -> None:
        """New tokens came in the read at `at_ns`; `num_tokens` is the server's count by then, None if it gave none."""
        if self.first_ns is None:
            self.first_ns = at_ns
        if at_ns == self.first_ns:  # several events in one read share its time, so its tokens are one first read
            self.num_first_tokens = num_tokens
        self.last_ns = at_ns


class PromptDetails(Chunk, frozen=True, gc=False):
    """Where the prompt's tokens came from."""

    cached_tokens: int | None = None


class Usage(Chunk, frozen=True, gc=False):
    """Token counts as OpenAI names them."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


STREAM_OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
"""Counts at the end, without which output lengths would be a guess; in every chunk where the server knows how."""


class Deltas(Dialect):
    """What OpenAI's two APIs share: a chunk carries what is new, and counts come as `usage`.

    A chunk may hold several tokens. Where usage comes with every chunk, it counts them; where it comes only at the end,
    the chunks hold one token each if there are as many chunks with text as tokens, and otherwise nobody can tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._num_first_texts = 0

    def finish(self) -> None:
        """The text, and how many tokens the first read held if that can be told."""
        self.text = "".join(self._texts)
        if self.num_first_tokens is None and self.num_tokens == len(self._texts):
            self.num_first_tokens = self._num_first_texts or None

    def took(self, at_ns: int, text: str | None, usage: Usage | None, finish_reason: str | None) -> None:
        """A chunk with a choice: it holds tokens if it has text, or if the server's count has grown with it.

        So a role, an empty delta and a chunk of usage alone are none.
        """
        count = usage.completion_tokens if usage is not None else None
        if text or (count or 0) > (self.num_tokens or 0):
            self.saw_tokens(at_ns, count or None)
            if text:
                self._texts.append(text)
                if at_ns == self.first_ns:
                    self._num_first_texts += 1
        if finish_reason is not None:
            self.finish_reason = finish_reason

    def counted(self, usage: Usage) -> None:
        """Keep what the server counted; the last word is its own."""
        self.num_tokens = latest(usage.completion_tokens, self.num_tokens)
        self.num_prompt_tokens = latest(usage.prompt_tokens, self.num_prompt_tokens)
        if usage.prompt_tokens_details is not None:
            self.num_cached_tokens = latest(usage.prompt_tokens_details.cached_tokens, self.num_cached_tokens)


T = TypeVar("T")


def latest(new: T | None, old: T | None) -> T | None:
    """What the last chunk that said anything said."""
    return old if new is None else new
