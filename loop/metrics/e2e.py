"""End-to-end latency: from when a request was due to its last token."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric
from loop.replies import Reply


class E2e(Metric):
    """`last_content - due`, one sample per request."""

    unit: ClassVar[str] = "ms"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Milliseconds per request."""
        return tuple(reply.e2e_ms for reply in replies if not reply.is_canary and reply.e2e_ms is not None)
