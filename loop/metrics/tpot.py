"""Time per output token after the first read: the decode speed that one user sees."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric
from loop.replies import Reply


class Tpot(Metric):
    """`(last_content - first_content) / (tokens - tokens in the first read)`, one sample per request."""

    unit: ClassVar[str] = "ms"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Milliseconds per token and request; none for a request whose tokens came in one read."""
        return tuple(reply.tpot_ms for reply in replies if not reply.is_canary and reply.tpot_ms is not None)
