"""Makespan: how long a fixed amount of concurrent work takes."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric, span_ms
from loop.replies import Reply


class Makespan(Metric):
    """The last token of the step minus its first request, one sample per step."""

    unit: ClassVar[str] = "ms"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Milliseconds, once."""
        span = span_ms(replies)
        return () if span is None else (span,)
