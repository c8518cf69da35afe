"""What a client asked for, whichever route it came through."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loop.fake_server.answers import pack_ids

Body = dict[str, Any]
MAX_NEW_TOKENS = 1 << 20


class BadOrder(ValueError):
    """The body cannot be answered; becomes HTTP 400."""


@dataclass(frozen=True, slots=True)
class Order:
    """One request. `packed` is the prompt in the form that answers and caches are keyed by."""

    rid: str
    prompt_ids: Sequence[int]
    packed: bytes
    num_tokens: int
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False


def native_order(body: Body, encode: Callable[[str], list[int]]) -> Order:
    """`/generate`: `input_ids` or `text`, and `sampling_params`."""
    sampling = body.get("sampling_params") or {}
    prompt = body["input_ids"] if body.get("input_ids") is not None else body.get("text")
    return _order(body, _ids(prompt, encode), sampling.get("max_new_tokens", 128))


def completion_order(body: Body, encode: Callable[[str], list[int]]) -> Order:
    """`/v1/completions`: a text or token ids."""
    return _order(body, _ids(body.get("prompt"), encode), body.get("max_tokens") or 16)


def chat_order(body: Body, encode: Callable[[str], list[int]]) -> Order:
    """`/v1/chat/completions`: the messages under a template of one marker line per message."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadOrder("messages must be a list with at least one message")
    prompt = "".join(f"<|{message['role']}|>\n{_content(message)}\n" for message in messages) + "<|assistant|>\n"
    wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 128
    return _order(body, _ids(prompt, encode), wanted)


def _content(message: Body) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _ids(prompt: Any, encode: Callable[[str], list[int]]) -> list[int]:
    ids = encode(prompt) if isinstance(prompt, str) else prompt
    if not isinstance(ids, list) or not ids or not isinstance(ids[0], int):
        raise BadOrder("the prompt must be one text or one list of token ids, not empty (batches are not served)")
    return ids


def _order(body: Body, ids: list[int], num_tokens: Any) -> Order:
    if not isinstance(num_tokens, int) or not 1 <= num_tokens <= MAX_NEW_TOKENS:
        raise BadOrder(f"the number of new tokens must be between 1 and {MAX_NEW_TOKENS}, got {num_tokens!r}")
    try:
        packed = pack_ids(ids)
    except (OverflowError, TypeError) as error:
        raise BadOrder(f"token ids must be whole numbers from 0 to 2**32 - 1: {error}") from error
    usage = body.get("stream_options") or {}
    return Order(
        rid=str(body.get("rid") or os.urandom(16).hex()),
        prompt_ids=ids,
        packed=packed,
        num_tokens=num_tokens,
        stream=bool(body.get("stream")),
        include_usage=bool(usage.get("include_usage")),
        continuous_usage=bool(usage.get("continuous_usage_stats")),
    )
