"""The phases of a session: where its seconds went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by phase, and what is left over: the cost of orchestration."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside counts for `name`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - started

    def finished(self) -> dict[str, float]:
        """Phase → seconds so far, and `overhead`, all that belongs to none."""
        total = time.monotonic() - self._started
        spent = {name: round(seconds, 3) for name, seconds in self._spent.items()}
        return {**spent, "overhead": round(total - sum(self._spent.values()), 3)}
