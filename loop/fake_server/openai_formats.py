"""Answers of `/v1/completions` and `/v1/chat/completions` as bytes."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson

from loop.fake_server.plans import Plan
from loop.fake_server.vocabulary import Token

_MARK = "\x00text\x00"


class OpenAIFormat:
    """What both routes share: usage, the event frame, errors."""

    kind: ClassVar[str]
    whole_kind: ClassVar[str]

    def __init__(self, plan: Plan, *, model: str, cache_report: bool, reasoning_tokens: int = 0) -> None:
        self.count = 0
        self.plan = plan
        self.reasoning_tokens = reasoning_tokens
        self._cache_report = cache_report
        self._frame = {"id": plan.order.rid, "object": self.kind, "created": int(time.time()), "model": model}

    def opening(self) -> bytes:
        """Only chat has one."""
        return b""

    def closing(self) -> bytes:
        """The usage chunk, if asked for."""
        return self.event([], usage=self.usage()) if self.plan.order.include_usage else b""

    def error(self, message: str, status: int) -> bytes:
        """Below 500 its fields are at the top, from 500 on under `error`."""
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        error = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
        return orjson.dumps({"error": error} if status >= 500 else error)

    def usage(self) -> dict[str, Any]:
        """Counts so far."""
        num_prompt = len(self.plan.order.prompt_ids)
        return {
            "prompt_tokens": num_prompt,
            "total_tokens": num_prompt + self.count,
            "completion_tokens": self.count,
            "prompt_tokens_details": {"cached_tokens": self.plan.num_cached} if self._cache_report else None,
            "reasoning_tokens": min(self.count, self.reasoning_tokens),
        }

    def event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        """One chunk that is rare enough to be serialized as it comes."""
        return b"data: " + orjson.dumps(self._frame | {"choices": choices, "usage": usage}) + b"\n\n"

    def answer(self, choice: dict[str, Any]) -> bytes:
        """The object that is not streamed."""
        frame = self._frame | {"object": self.whole_kind, "choices": [choice], "usage": self.usage()}
        return orjson.dumps(frame | {"metadata": {"weight_version": "default"}})

    def template(self, choice: dict[str, Any]) -> tuple[bytes, bytes]:
        """What stands before and after the text of a chunk, up to the usage."""
        before, _, after = self.event([choice]).partition(orjson.dumps(_MARK)[1:-1])
        return before, after

    def fill(self, template: tuple[bytes, bytes], tokens: Sequence[Token]) -> bytes:
        """A chunk with new tokens; counts them."""
        self.count += len(tokens)
        before, after = template
        event = before + b"".join([token.json_text for token in tokens]) + after
        if not self.plan.order.continuous_usage:
            return event
        return event.removesuffix(b"null}\n\n") + orjson.dumps(self.usage()) + b"}\n\n"


class CompletionFormat(OpenAIFormat):
    """`/v1/completions`: the last chunk of text carries the finish reason."""

    kind = whole_kind = "text_completion"

    def __init__(self, plan: Plan, *, model: str, cache_report: bool) -> None:
        super().__init__(plan, model=model, cache_report=cache_report)
        self._template = self.template(_text_choice(_MARK, None))

    def chunk(self, tokens: Sequence[Token], *, last: bool) -> bytes:
        """Adds to `count`; with no tokens it is an event with an empty text."""
        template = self.template(_text_choice(_MARK, self.plan.finish)) if last else self._template
        return self.fill(template, tokens)

    def whole(self) -> bytes:
        """One choice, whose finish reason is the plan's."""
        text = "".join(token.text for token in self.plan.tokens[: self.count])
        return self.answer(_text_choice(text, self.plan.finish))


class ChatFormat(OpenAIFormat):
    """`/v1/chat/completions`: a role chunk, content chunks, a finish chunk."""

    kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def __init__(self, plan: Plan, *, model: str, cache_report: bool, reasoning_tokens: int) -> None:
        super().__init__(plan, model=model, cache_report=cache_report, reasoning_tokens=reasoning_tokens)
        self._content = self.template(_delta_choice(content=_MARK))
        self._reasoning = self.template(_delta_choice(reasoning_content=_MARK))

    def opening(self) -> bytes:
        """The role with an empty content, which a client must not take for the first token."""
        return self.event([_delta_choice(role="assistant", content="")])

    def chunk(self, tokens: Sequence[Token], *, last: bool) -> bytes:
        """Two events where the reasoning ends inside it; the finish reason waits for `closing`."""
        num_reasoning = max(0, min(len(tokens), self.reasoning_tokens - self.count))
        event = b""
        if num_reasoning:
            event = self.fill(self._reasoning, tokens[:num_reasoning])
        if num_reasoning < len(tokens) or not tokens:
            event += self.fill(self._content, tokens[num_reasoning:])
        return event

    def closing(self) -> bytes:
        """The finish reason in an event without content, then the usage chunk, if asked for."""
        finish = self.plan.finish
        choice = _delta_choice() | {"finish_reason": finish["type"], "matched_stop": finish.get("matched")}
        return self.event([choice]) + super().closing()

    def whole(self) -> bytes:
        """`reasoning_content` is None where no token is reasoning, `content` is empty where all are."""
        texts = [token.text for token in self.plan.tokens[: self.count]]
        reasoning, content = texts[: self.reasoning_tokens], texts[self.reasoning_tokens :]
        message = {
            "role": "assistant",
            "content": "".join(content),
            "reasoning_content": "".join(reasoning) or None,
            "tool_calls": None,
        }
        finish = self.plan.finish
        return self.answer(
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": finish["type"],
                "matched_stop": finish.get("matched"),
            }
        )


def _text_choice(text: str, finish: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish["type"] if finish else None,
        "matched_stop": finish.get("matched") if finish else None,
    }


def _delta_choice(
    role: str | None = None, content: str | None = None, reasoning_content: str | None = None
) -> dict[str, Any]:
    delta = {"role": role, "content": content, "reasoning_content": reasoning_content}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}
