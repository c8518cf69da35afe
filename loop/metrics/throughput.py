"""Output throughput of a fixed amount of work."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric, span_ms
from loop.replies import Reply


class Throughput(Metric):
    """Output tokens of successful requests over the makespan of all of them, one sample per step."""

    unit: ClassVar[str] = "tokens/s"
    better: ClassVar[Literal["lower", "higher"]] = "higher"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Tokens per second, once. A failed request took time and delivered nothing."""
        tokens = sum(reply.num_tokens or 0 for reply in replies if reply.failure is None)
        span = span_ms(replies)
        return (tokens / (span / 1e3),) if span else ()
