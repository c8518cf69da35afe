"""Draws that are the same on every machine and on every Python version."""

import random
from collections.abc import Sequence
from typing import Self, TypeVar

T = TypeVar("T")


class Dice:
    """A stream of draws, named by its labels: equal labels give equal draws.

    Uses `random.random()` alone. Python promises its sequence for a seed in every version; it promises
    nothing for `choice`, `sample`, `shuffle` or `randrange`.
    """

    def __init__(self, *labels: str | int) -> None:
        self._labels = labels
        self._random = random.Random("\x1f".join(map(str, labels)))

    def fork(self, *labels: str | int) -> Self:
        """An independent stream below this one; does not advance this one."""
        return type(self)(*self._labels, *labels)

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int(self._random.random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with `probability` (0 to 1); costs one draw whatever it is."""
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Every position is equally likely; raises IndexError if there is none."""
        return items[self.number(0, len(items) - 1)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """All of `items` in a drawn order (Fisher-Yates)."""
        left = list(items)
        for last in range(len(left) - 1, 0, -1):
            other = self.number(0, last)
            left[last], left[other] = left[other], left[last]
        return left

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` of `items`, each position at most once."""
        if count > len(items):
            raise ValueError(f"{count} of {len(items)} items")
        return self.shuffled(items)[:count]

    def letters(self, count: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
        """Drawn one by one, so they may repeat."""
        return "".join(self.pick(alphabet) for _ in range(count))
