"""SGLang's native `/generate`: token ids in; text, ids and counts out, cumulative unless the server is asked."""

from typing import Any

import msgspec

from loop.dialects import END_MARKER, Chunk, Dialect, Event, Request, latest


class Finish(Chunk, frozen=True, gc=False):
    """SGLang's finish reason."""

    type: str


class MetaInfo(Chunk, frozen=True, gc=False):
    """SGLang's `meta_info`. Counts are cumulative."""

    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    e2e_latency: float | None = None
    finish_reason: Finish | None = None


class GenerateEvent(Event, frozen=True, gc=False):
    """An event of `/generate`. A server without a tokenizer sends no text."""

    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo = MetaInfo()


DECODER = msgspec.json.Decoder(GenerateEvent)


class Generate(Dialect):
    """Cumulative chunks repeat all before them: after the first read only the last two are decoded, at the end."""

    path = "/generate"

    def __init__(self) -> None:
        super().__init__()
        self._cumulative: bool | None = None
        self._texts: list[str] = []
        self._last: tuple[int, bytes] | None = None
        self._before_last: tuple[int, bytes] | None = None

    @staticmethod
    def body(request: Request) -> dict[str, Any]:
        """Token ids, so that no tokenizer stands between two arms. Our ids stay here: they say what is a canary."""
        sampling = {"temperature": 0.0, "max_new_tokens": request.max_new_tokens, "ignore_eos": request.ignore_eos}
        return {
            "input_ids": list(request.input_ids),
            "sampling_params": sampling,
            "stream": True,
        }

    def event(self, at_ns: int, data: bytes) -> None:
        """Disjoint chunks are small, and each is decoded; so is everything in the first read, to count it."""
        if data == END_MARKER:
            self.ended = True
            return
        self.num_chunks += 1
        if self._cumulative and at_ns != self.first_ns and not data.startswith(b'{"error"'):
            self._before_last, self._last = self._last, (at_ns, data)
        else:
            self._take(at_ns, data)

    def finish(self) -> None:
        """Decode the kept chunks in order. The last one may hold no new token: then the one before it did."""
        for kept in (self._before_last, self._last):
            if kept is not None:
                self._take(*kept)
        self._before_last = self._last = None
        self.text = "".join(self._texts)

    def _take(self, at_ns: int, data: bytes) -> None:
        event = self.decode(DECODER, data)
        if event is None:
            return
        meta, ids, text = event.meta_info, event.output_ids or [], event.text or ""
        count = meta.completion_tokens
        if ids or text:
            if self._cumulative is None and (self.output_ids or self._texts):
                # Cumulative chunks grow with the count; disjoint ones hold only what is new.
                self._cumulative = len(ids) == count if ids else text.startswith(self._texts[0])
            if self._cumulative:
                self._texts, self.output_ids = [text], ids
            else:
                self._texts.append(text)
                self.output_ids += ids
        if (count or 0) > (self.num_tokens or 0):
            self.saw_tokens(at_ns, count)
        self.num_tokens = latest(count, self.num_tokens)
        self.num_prompt_tokens = latest(meta.prompt_tokens, self.num_prompt_tokens)
        self.num_cached_tokens = latest(meta.cached_tokens, self.num_cached_tokens)
        self.server_e2e_s = latest(meta.e2e_latency, self.server_e2e_s)
        if meta.finish_reason is not None:
            self.finish_reason = meta.finish_reason.type
