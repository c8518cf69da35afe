"""Token ids and text.

A model directory with a `tokenizer.json` lends its tokenizer, so that prompt counts and ids agree with what a client
computes from the same directory. Without one, the internal vocabulary is used:

    0..255        one byte each; text outside the word list is spelled with these, so decoding inverts encoding
    256..1279     " " + a word of two syllables: " kamo", " tené" (some carry an accent, so answers are not pure ASCII)
    from 0x2E80   one CJK character each, its code point

An answer token's text may be empty where the tokenizer needs several tokens for one character: as in SGLang, the text
is held back until the character is complete.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

LOG = logging.getLogger(__name__)

FIRST_WORD = 256
FIRST_CJK = 0x2E80
_CJK = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_SYLLABLES = [onset + vowel for onset in "kmnrstlp" for vowel in "aeio"]
_WORDS = [(first + second).replace("ne", "né") for first in _SYLLABLES for second in _SYLLABLES]


class Token(NamedTuple):
    """One answer token, with the bytes that a JSON string and a JSON list need of it."""

    id: int
    text: str
    json_text: bytes
    json_id: bytes


class Vocabulary(NamedTuple):
    """`words` and `characters` are what answers are made of: each entry is the tokens of one word or CJK character."""

    words: Sequence[Sequence[Token]]
    characters: Sequence[Sequence[Token]]
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    has_cjk: Callable[[Sequence[int]], bool]


def token_of(token_id: int, text: str) -> Token:
    """U+2028 and other non-ASCII characters stay raw in `json_text`, as in SGLang's JSON."""
    return Token(token_id, text, orjson.dumps(text)[1:-1], b"%d" % token_id)


def load_vocabulary(model_path: Path) -> Vocabulary:
    """The model directory's tokenizer where it has a usable one, else the internal vocabulary."""
    file = model_path / "tokenizer.json"
    if not file.is_file():
        return internal_vocabulary()
    try:
        return _borrowed_vocabulary(file)
    except ValueError as error:
        LOG.warning("The tokenizer of %s is not usable (%s); the internal word list is used.", model_path, error)
        return internal_vocabulary()


def internal_vocabulary() -> Vocabulary:
    """The word list described at the top."""
    ids = {f" {word}": FIRST_WORD + n for n, word in enumerate(_WORDS)}
    pieces = {n: bytes((n,)) for n in range(FIRST_WORD)} | {token_id: text.encode() for text, token_id in ids.items()}
    pattern = re.compile(r" [a-zé]+|.", re.DOTALL)

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for piece in pattern.findall(text):
            if piece in ids:
                found.append(ids[piece])
            elif _CJK.match(piece):
                found.append(ord(piece))
            else:
                found.extend(piece.encode(errors="replace"))
        return found

    def bytes_of(token_id: int) -> bytes:
        if token_id >= FIRST_CJK and _CJK.match(chr(min(token_id, 0x10FFFF))):
            return chr(token_id).encode()
        return pieces.get(token_id, "\ufffd".encode())

    def decode(token_ids: Sequence[int]) -> str:
        return b"".join(map(bytes_of, token_ids)).decode(errors="replace")

    words = [(token_of(token_id, text),) for text, token_id in ids.items()]
    characters = [(token_of(0x4E00 + n, chr(0x4E00 + n)),) for n in range(len(words))]
    return Vocabulary(words, characters, encode, decode, lambda token_ids: max(token_ids) >= FIRST_CJK)


def _borrowed_vocabulary(file: Path) -> Vocabulary:
    """Raises ValueError for whatever makes the tokenizer unusable."""
    from tokenizers import Tokenizer  # slow to import, and rarely needed

    try:
        return _spelled_vocabulary(Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises bare Exception, for an unreadable file and for an unknown character
        raise ValueError(str(error)) from error


def _spelled_vocabulary(tokenizer: Any) -> Vocabulary:
    """A quarter of the word list, spelled in the tokenizer's own tokens. Raises ValueError when it cannot spell it."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def spell(texts: Iterable[str]) -> list[list[Token]]:
        return [_spelled(text, tokenizer.encode(text, add_special_tokens=False).ids, anchor, decode) for text in texts]

    # Some decoders drop the first space of a text, so words are decoded after another word.
    anchor = list(tokenizer.encode(" a", add_special_tokens=False).ids)
    return Vocabulary(
        spell(f" {word}" for word in _WORDS[::4]),
        spell(chr(0x4E00 + n) for n in range(len(_WORDS) // 4)),
        encode,
        decode,
        lambda token_ids: _CJK.search(decode(token_ids)) is not None,
    )


def _spelled(text: str, ids: list[int], anchor: list[int], decode: Callable[[Sequence[int]], str]) -> list[Token]:
    tokens: list[Token] = []
    shown = len(decode(anchor))
    for end, token_id in enumerate(ids, start=1):
        so_far = decode(anchor + ids[:end]).rstrip("\ufffd")
        tokens.append(token_of(token_id, so_far[shown:]))
        shown = max(shown, len(so_far))
    if "".join(token.text for token in tokens) != text:
        raise ValueError(f"it cannot spell {text!r}")
    return tokens
