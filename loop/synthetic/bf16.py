"""bfloat16 without torch: the upper half of a float32, rounded to nearest even, kept as uint16."""

import zlib

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Floats = NDArray[np.float32]


def round_to_bf16(values: NDArray[np.floating]) -> Bits:
    """The bf16 bit patterns of finite `values`, same shape. Ties go to even, as in hardware."""
    word = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)


def widen_bf16(bits: Bits) -> Floats:
    """The float32 values of bf16 bit patterns, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Filler:
    """Small random weights for everything the construction does not use.

    Drawing billions of normals takes minutes, so one pool is drawn and every tensor reads it from its own offset. The
    pool's length is prime, so that the rows of a matrix never line up.
    """

    POOL = 1_048_573  # values; prime

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._pool = np.random.default_rng([seed, 0xF111]).standard_normal(self.POOL, dtype=np.float32)
        self._bits: dict[float, Bits] = {}

    def fill(self, name: str, shape: tuple[int, ...], std: float) -> Bits:
        """bf16 patterns of `shape` with standard deviation `std`; the same for the same `name`."""
        if std not in self._bits:
            self._bits[std] = round_to_bf16(self._pool * np.float32(std))
        offset = zlib.crc32(f"{self._seed}/{name}".encode()) % self.POOL
        return np.resize(np.roll(self._bits[std], -offset), shape)
