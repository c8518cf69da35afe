"""Reading from and writing to the residual stream: from semantic coordinates to rows and columns of weight matrices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loop.synthetic.bf16 import Bits, Filler, round_to_bf16
from loop.synthetic.codebook import BIT, CONST, LEVEL, PLACES, Codebook
from loop.synthetic.shards import Tensor

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Norm:
    """An RMSNorm over the hidden dimension, undone by whoever reads behind it.

    The length of every state is known, so the norm is a known factor, and its weights can be anything.
    """

    weight: Array  # (hidden,)
    gain: float  # hidden**0.5 / length of the state


def state_gain(hidden: int, constant: float = LEVEL, bits: int = 0) -> float:
    """hidden**0.5 / length of a state with that constant and so many scratch bits; flag and digits are 1 each."""
    return float(np.sqrt(hidden / (constant**2 + 1 + PLACES + bits * BIT**2)))


def draw_norm(hidden: int, gain: float, rng: np.random.Generator, uniform: float | None = None) -> Norm:
    """Random weights, or `uniform` ones."""
    weight = rng.uniform(0.7, 1.4, hidden) if uniform is None else np.full(hidden, uniform)
    weight = np.round(weight * 128) / 128  # exact in bf16, also after the 1 of zero-centered norms is taken off
    return Norm(weight, gain)


class Rows:
    """Rows of a matrix that reads a normed state: each is a linear function of the semantic coordinates.

    The constant reads as 1. Kept in that form until the file is written, so that a large model is never in memory.
    """

    def __init__(self, book: Codebook, norm: Norm, count: int) -> None:
        self.function = np.zeros((count, book.size))
        self._book, self._norm = book, norm

    def select(self, rows: Sequence[int]) -> "Rows":
        """Some of these rows, in that order."""
        picked = Rows(self._book, self._norm, len(rows))
        picked.function[:] = self.function[list(rows)]
        return picked

    def weights(self) -> Array:
        """As an array of shape (count, hidden)."""
        function = self.function.copy()
        function[:, CONST] /= LEVEL
        used = function.any(axis=0)
        return np.asarray(function[:, used] @ (self._book.basis[:, used].T / (self._norm.weight * self._norm.gain)))


class Columns:
    """Columns of a matrix that writes into the state: each is a vector in semantic coordinates."""

    def __init__(self, book: Codebook, count: int) -> None:
        self.vectors = np.zeros((count, book.size))
        self._book = book

    def weights(self) -> Array:
        """As an array of shape (count, hidden)."""
        return np.asarray(self.vectors @ self._book.basis.T)


@dataclass(frozen=True)
class Matrix:
    """A weight matrix: small random numbers, except for the rows or columns that the construction sets."""

    name: str
    shape: tuple[int, int]  # (out, in)
    std: float
    rows: Sequence[tuple[Index, Rows]] = ()  # indices into `out`
    columns: Sequence[tuple[Index, Columns]] = ()  # indices into `in`

    def tensor(self, filler: Filler) -> Tensor:
        """Written only when the file is."""

        def chunks() -> Iterator[Bits]:
            bits = filler.fill(self.name, self.shape, self.std)
            for index, rows in self.rows:
                used = rows.function.any(axis=1)  # the others stay random
                bits[index[used]] = round_to_bf16(rows.weights()[used])
            for index, columns in self.columns:
                bits[:, index] = round_to_bf16(columns.weights()).T
            yield bits

        return Tensor(self.name, self.shape, chunks)


def vector(name: str, values: Array) -> Tensor:
    """A tensor that is written as it is."""
    return Tensor(name, values.shape, lambda: iter([round_to_bf16(values)]))
