"""How a token id is written into the residual stream.

An id is `DIGITS` digits in base `base`, each a one-hot block of a small "semantic" space that also holds a constant, a
flag, a memory digit and one scratch bit per digit. The space is laid into the hidden dimension by orthonormal columns,
so that weights look dense. Exactly base**DIGITS ids, all plain words, can be generated (flag +1). Every other id
(bytes, specials, rare tokens) is a twin of one of them with flag -1: it is read like its twin and never wins as an
output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loop.errors import InputError
from loop.synthetic.geometry import Geometry

Array = NDArray[np.float64]

DIGITS = 3  # of a token
MEMORY = DIGITS  # place of a further digit, 0 in every embedding: it carries context from layer to layer
PLACES = DIGITS + 1
BASES = (32, 16, 8, 4)
COPIES = 4  # of every lookup, each rounded differently, to halve the noise of one
CONST, FLAG = 0, 1  # semantic coordinates
# Sizes; flag and digits are 1. The constant is large, so that an error in a digit hardly changes the length of the
# state. A bit is small, because one that could not be fetched is 0 and the state then shorter. Behind the last layer
# the constant is CLOSED, so that logits are small and bf16 rounds them finely.
LEVEL, BIT, CLOSED = 3.0, 0.5, -1.0


@dataclass(frozen=True)
class Codebook:
    """The digits of every id and where they lie in the hidden dimension."""

    base: int
    digits: NDArray[np.int64]  # (vocab, DIGITS)
    flags: Array  # (vocab,) +1 for ids that can be generated, else -1
    basis: Array  # (hidden, size) orthonormal columns

    @property
    def size(self) -> int:
        """Semantic coordinates: constant, flag, digit blocks, scratch bits."""
        return semantic_size(self.base)

    def digit(self, position: int, value: int = 0) -> int:
        """Coordinate of one digit value."""
        return 2 + position * self.base + value

    def scratch(self, position: int) -> int:
        """Coordinate of the bit that attention fetched for one digit."""
        return 2 + PLACES * self.base + position

    def embed(self, start: int, stop: int) -> NDArray[np.float32]:
        """(stop - start, hidden) codes of the ids in that range."""
        vectors = np.ascontiguousarray(self.basis.T, dtype=np.float32)
        base = np.float32(LEVEL) * vectors[CONST] + vectors[self.digit(MEMORY)]
        rows = np.where(self.flags[start:stop, None] > 0, base + vectors[FLAG], base - vectors[FLAG])
        for position in range(DIGITS):
            rows += vectors[self.digit(position) + self.digits[start:stop, position]]
        return rows


def semantic_size(base: int) -> int:
    """Coordinates needed for digits in `base`."""
    return 2 + PLACES * base + PLACES


def required_neurons(base: int) -> int:
    """MLP neurons needed: erasers of digits, bits and flag, the flag's writer, and pairs of lookups."""
    return PLACES * base + PLACES + 2 + PLACES * base * 4 * COPIES


def build_codebook(geometry: Geometry, words: Sequence[int], rng: np.random.Generator) -> Codebook:
    """Choose the largest base that fits, the ids that can be generated, and everyone's digits."""
    base = _choose_base(geometry, len(words))
    count = base**DIGITS
    every = np.arange(count)
    table = np.stack([every // base**p % base for p in range(DIGITS)], axis=1)
    digits = table[rng.integers(count, size=geometry.vocab)]
    flags = np.full(geometry.vocab, -1.0)
    chosen = rng.permutation(np.asarray(words, dtype=np.int64))[:count]
    digits[chosen], flags[chosen] = table, 1.0
    columns, _ = np.linalg.qr(rng.standard_normal((geometry.hidden, semantic_size(base))))
    basis = np.round(columns * 2**20) / 2**20  # so that a last-bit difference between BLAS builds cannot reach the file
    return Codebook(base=base, digits=digits, flags=flags, basis=basis)


def _choose_base(geometry: Geometry, num_words: int) -> int:
    for base in BASES:
        fits = (
            base**DIGITS <= num_words
            and semantic_size(base) + 8 <= geometry.hidden
            and required_neurons(base) <= geometry.intermediate
            and ("linear_attention" not in geometry.layer_kinds or _fits_delta(geometry, base))
        )
        if fits:
            return base
    least = BASES[-1]
    raise InputError(
        f"the model is too small to carry tokens: hidden {geometry.hidden}, intermediate {geometry.intermediate}, "
        f"{num_words} plain words in the vocabulary",
        next=f"use hidden >= {semantic_size(least) + 8}, intermediate >= {required_neurons(least)}, "
        f">= {least**DIGITS} plain words, linear_key_head_dim >= {least}, linear_value_head_dim >= {2 * PLACES} and "
        "linear_conv_kernel_dim >= 2",
    )


def _fits_delta(geometry: Geometry, base: int) -> bool:
    """Keys are one-hot digits of an earlier token; a value head holds two channels for each bit it serves."""
    bits = -(-PLACES // geometry.value_heads)
    return base <= geometry.key_dim and 2 * bits <= geometry.value_dim and geometry.conv >= 2
