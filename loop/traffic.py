"""Prompts to requests: salted, tokenized with the model's own tokenizer, cut to exact lengths."""

import hashlib
import hmac
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from loop.dialects import Request
from loop.errors import SuiteError
from loop.prompts import Prompt
from loop.wording import count

SALT_WORDS = (
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "haven",
    "islet", "jetty", "knoll", "ledge", "maple", "nexus", "ocean", "prism",
)  # fmt: skip
"""Sixteen short words: one per nibble, so that every salt has the same shape."""


@lru_cache(maxsize=4)
def load_tokenizer(model: Path) -> Tokenizer:
    """The model's own tokenizer; raises SuiteError where it has none."""
    path = model / "tokenizer.json"
    if not path.is_file():
        raise SuiteError(f"{path} is missing: requests are sent as token ids and need the model's tokenizer")
    return Tokenizer.from_file(str(path))


def salt(secret: bytes, workload: str, pass_index: int, index: int) -> str:
    """The first line of a timed prompt: unguessable before the round, equal in every arm.

    Source: HMAC-SHA256 over `workload|pass|index`, eight nibbles of it as words.
    """
    message = f"{workload}|{pass_index}|{index}".encode()
    digest = hmac.new(secret, message, hashlib.sha256).hexdigest()
    return " ".join(SALT_WORDS[int(nibble, 16)] for nibble in digest[:8]) + "\n"


def check_requests(model: Path, prompts: Sequence[Prompt], *, name: str = "check") -> tuple[Request, ...]:
    """Correctness requests: unsalted, free to stop at the model's end token. `name` begins their ids."""
    return _build(model, prompts, ["" for _ in prompts], prefix=name, ignore_eos=False)


def timed_requests(
    model: Path, prompts: Sequence[Prompt], *, secret: bytes, workload: str, pass_index: int
) -> tuple[Request, ...]:
    """Timed requests of one pass: salted, exact input and output lengths."""
    salts = [salt(secret, workload, pass_index, index) for index in range(len(prompts))]
    return _build(model, prompts, salts, prefix=f"{workload}-{pass_index}", ignore_eos=True)


def context_length(model: Path) -> int | None:
    """The longest sequence the model's config allows, or None where it does not say."""
    config = json.loads((model / "config.json").read_text())
    config = {**config, **(config.get("text_config") or {})}
    length = config.get("max_position_embeddings")
    return int(length) if length else None


def _build(
    model: Path, prompts: Sequence[Prompt], salts: Sequence[str], *, prefix: str, ignore_eos: bool
) -> tuple[Request, ...]:
    """Requests in order; raises SuiteError for a prompt that is too short to cut or too long for the model.

    Every request has its prompt as text too: for a cut one, the characters that its tokens cover.
    """
    texts = [salt_ + prompt.text for salt_, prompt in zip(salts, prompts, strict=True)]
    encodings = load_tokenizer(model).encode_batch(texts)
    limit = context_length(model)
    requests = []
    for index, (prompt, text, encoding) in enumerate(zip(prompts, texts, encodings, strict=True)):
        ids = encoding.ids if prompt.input_tokens is None else encoding.ids[: prompt.input_tokens]
        if prompt.input_tokens is not None and len(ids) < prompt.input_tokens:
            raise SuiteError(f"prompt {prompt.id} has {count(len(ids), 'token')}, {prompt.input_tokens} are asked for")
        if limit is not None and len(ids) + prompt.max_new_tokens >= limit:
            raise SuiteError(
                f"prompt {prompt.id} needs {len(ids)} + {prompt.max_new_tokens} tokens; {model} holds {limit}",
                next="choose a suite with shorter prompts, or a model with a longer context",
            )
        requests.append(
            Request(
                rid=f"{prefix}-{index:03d}",
                input_ids=tuple(ids),
                text=text if prompt.input_tokens is None else text[: encoding.offsets[prompt.input_tokens - 1][1]],
                max_new_tokens=prompt.max_new_tokens,
                ignore_eos=ignore_eos,
            )
        )
    return tuple(requests)
