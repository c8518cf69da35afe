"""A radix cache's answer without the tree: which prefix of a prompt has been seen since the last flush."""

from bisect import bisect_left
from collections import deque

_TOKEN_BYTES = 4


class PrefixCache:
    """Remembers packed token ids (four bytes each); the oldest entries go first when the capacity is reached.

    They are in a sorted list: the longest common prefix with anything remembered is that with a neighbour.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_bytes = capacity_tokens * _TOKEN_BYTES
        self._sorted: list[bytes] = []
        self._by_age: deque[bytes] = deque()
        self._num_bytes = 0

    @property
    def num_tokens(self) -> int:
        """Tokens remembered; a shared prefix counts once for every entry."""
        return self._num_bytes // _TOKEN_BYTES

    def match(self, prompt: bytes) -> int:
        """Cached tokens of the prompt. The last one is always computed, as in SGLang."""
        place = bisect_left(self._sorted, prompt)
        neighbours = self._sorted[max(0, place - 1) : place + 1]
        shared = max((_common_bytes(prompt, other) for other in neighbours), default=0)
        return max(0, min(shared, len(prompt) - _TOKEN_BYTES)) // _TOKEN_BYTES

    def remember(self, tokens: bytes) -> None:
        """Longer than the capacity is not remembered at all."""
        place = bisect_left(self._sorted, tokens)
        if len(tokens) > self._capacity_bytes or self._sorted[place : place + 1] == [tokens]:
            return
        self._sorted.insert(place, tokens)
        self._by_age.append(tokens)
        self._num_bytes += len(tokens)
        while self._num_bytes > self._capacity_bytes:
            oldest = self._by_age.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._num_bytes -= len(oldest)

    def flush(self) -> None:
        """Forget everything."""
        self._sorted.clear()
        self._by_age.clear()
        self._num_bytes = 0


def _common_bytes(left: bytes, right: bytes) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:  # invariant: the first `low` bytes agree
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
