"""Tokenizer files: those of the tiny model, or the ones copied for another geometry, and which ids are plain words."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from loop.errors import InputError
from loop.synthetic.words import WORDS

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
_WORD = re.compile(
    r"[\u0120\u2581][A-Za-z]{2,}"
)  # a space (as byte-level BPE or SentencePiece writes it), then letters

# ChatML. Content may be a string or OpenAI's list of parts; every role is taken as it comes.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- elif message['content'] -%}
{%- for part in message['content'] -%}
{{- part if part is string else part.get('text', '') -}}
{%- endfor -%}
{%- endif -%}
{%- if message.get('tool_calls') -%}{{- message['tool_calls'] | tojson -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def write_tiny_tokenizer(directory: Path) -> list[int]:
    """Write the tiny model's tokenizer; returns the ids of its words."""
    vocab, merges = _build_vocabulary()
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 256 + i, "content": content, **plain} for i, content in enumerate(SPECIALS)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    _write_json(directory / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    })  # fmt: skip
    _write_json(directory / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768, "clean_up_tokenization_spaces": False,
        "bos_token": None, "eos_token": SPECIALS[2], "pad_token": SPECIALS[0], "unk_token": None,
        "add_bos_token": False, "chat_template": CHAT_TEMPLATE,
    })  # fmt: skip
    return [vocab["\u0120" + word] for word in WORDS.split()]


def copy_tokenizer(source: Path, directory: Path, vocab_size: int) -> list[int] | None:
    """Copy the tokenizer files of `source` (a file or directory). The ids of plain words, or None when it has none."""
    folder = source if source.is_dir() else source.parent
    for name in _FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, directory / name)
    if not (directory / "tokenizer.json").is_file():
        return None
    try:
        described = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        vocab = described["model"]["vocab"]
        ids = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
        added = {entry["id"] for entry in described.get("added_tokens", [])}
        known = {int(i): text for text, i in ids if i not in added}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / 'tokenizer.json'} is not a tokenizer: {error!r}", next="give a Hugging Face tokenizer.json"
        ) from error
    largest = max([*known, *added], default=0)
    if largest >= vocab_size:
        raise InputError(
            f"the tokenizer has id {largest}, the model only {vocab_size} embeddings",
            next="give the tokenizer that belongs to this config.json",
        )
    return sorted(i for i, text in known.items() if _WORD.fullmatch(text))


def guess_words(vocab_size: int, reserved: frozenset[int]) -> list[int]:
    """Without a tokenizer: every id but the bytes at the start and the specials at the end."""
    return [i for i in range(256, vocab_size * 7 // 8) if i not in reserved]


def tiny_vocab_size() -> int:
    """Embeddings of the tiny model: its tokens, filled up to a multiple of 64."""
    return -(-len(_build_vocabulary()[0]) // 64) * 64


def _build_vocabulary() -> tuple[dict[str, int], list[list[str]]]:
    """Byte-level BPE whose merges spell every word from its leading space, a letter at a time."""
    alphabet = _byte_alphabet()
    vocab = {character: byte for byte, character in enumerate(alphabet)}
    vocab.update({content: 256 + i for i, content in enumerate(SPECIALS)})
    merges: list[list[str]] = []
    words = sorted(WORDS.split())
    for size in range(1, max(map(len, words)) + 1):  # short prefixes first: that is the order in which BPE applies them
        for prefix in dict.fromkeys(word[:size] for word in words if len(word) >= size):
            merges.append(["\u0120" + prefix[:-1], prefix[-1]])
            vocab["\u0120" + prefix] = len(vocab)
    return vocab, merges


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for every byte (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
