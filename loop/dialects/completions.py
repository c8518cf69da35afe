"""OpenAI's `/v1/completions`: token ids in, text out, one delta a chunk."""

from typing import Any

import msgspec

from loop.dialects import END_MARKER, STREAM_OPTIONS, Chunk, Deltas, Event, Request, Usage


class Choice(Chunk, frozen=True, gc=False):
    """A choice of a chunk."""

    text: str | None = None
    finish_reason: str | None = None


class CompletionEvent(Event, frozen=True, gc=False):
    """An event of `/v1/completions`."""

    choices: list[Choice] = []
    usage: Usage | None = None


DECODER = msgspec.json.Decoder(CompletionEvent)


class Completions(Deltas):
    """The prompt goes as token ids, which SGLang and vLLM take."""

    path = "/v1/completions"

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        """With usage always asked for."""
        return {
            "model": "default",
            "prompt": list(request.input_ids),
            "temperature": 0.0,
            "max_tokens": request.max_new_tokens,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": STREAM_OPTIONS,
        }

    def event(self, at_ns: int, data: bytes) -> None:
        """Text of each choice, counts of each usage."""
        if data == END_MARKER:
            self.ended = True
            return
        self.num_chunks += 1
        event = self.decode(DECODER, data)
        if event is None:
            return
        for choice in event.choices:
            self.took(at_ns, choice.text, event.usage, choice.finish_reason)
        if event.usage is not None:
            self.counted(event.usage)
