"""End-to-end latency: from sending a request to its last token."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric
from loop.replies import Reply


class E2e(Metric):
    """`last_content - sent`, one sample per request."""

    unit: ClassVar[str] = "ms"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Milliseconds per request."""
        return tuple(reply.e2e_ms for reply in replies if reply.e2e_ms is not None)
