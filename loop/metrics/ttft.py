"""Time to first token, from when a request was due."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric
from loop.replies import Reply


class Ttft(Metric):
    """`first_content - due`, one sample per request."""

    unit: ClassVar[str] = "ms"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Milliseconds per request."""
        return tuple(reply.ttft_ms for reply in replies if not reply.is_canary and reply.ttft_ms is not None)
