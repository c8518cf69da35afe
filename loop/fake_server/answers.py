"""The known answer: a pure function of the answer seed and the prompt's token ids.

    key   = BLAKE2b(seed, variant, ids as little-endian 32-bit words)
    draws = SHAKE-128(key) read as little-endian 16-bit words, one word or character of the vocabulary each

A shorter answer is therefore a prefix of a longer one, whatever the process, machine or Python version. Sampling
parameters other than the length change nothing. A prompt with CJK characters among its first 512 tokens is answered
in CJK characters without spaces.
"""

import os
import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b, shake_128
from itertools import chain, islice

from loop.fake_server.vocabulary import Token, Vocabulary

RIGHT, WRONG = 0, 1
_HEAD_TOKENS = 512


def pack_ids(ids: Sequence[int]) -> bytes:
    """Little-endian 32-bit words. Raises OverflowError or TypeError on what is not a token id."""
    return _little_endian(array("I", ids)).tobytes()


def _little_endian(words: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        words.byteswap()
    return words


class Answers:
    """What this server says, and what it would say if it were wrong."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.vocabulary = vocabulary
        self.seed = seed
        self.process_variant = int.from_bytes(os.urandom(4), "little") | 2
        """Never `RIGHT` or `WRONG`: the variant of the fault `unstable_answer`."""

    def tokens(self, prompt: bytes, num_tokens: int, *, cjk: bool, variant: int = RIGHT) -> list[Token]:
        """The first `num_tokens` tokens of the answer to a packed prompt."""
        header = b"%d,%d;" % (self.seed, variant)
        key = blake2b(header + prompt, digest_size=32).digest()
        draws = _little_endian(array("H", shake_128(key).digest(2 * num_tokens)))
        pieces = self.vocabulary.characters if cjk else self.vocabulary.words
        chosen = (pieces[draw % len(pieces)] for draw in draws)
        return list(islice(chain.from_iterable(chosen), num_tokens))

    def head(self, ids: Sequence[int]) -> str:
        """The beginning of a prompt as text."""
        return self.vocabulary.decode(ids[:_HEAD_TOKENS])

    def wants_cjk(self, ids: Sequence[int]) -> bool:
        """Whether the answer to this prompt is unspaced CJK text."""
        return self.vocabulary.has_cjk(ids[:_HEAD_TOKENS])
