"""Goodput: requests per second that a user was content with."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from loop.metrics import Metric
from loop.replies import Reply


class Goodput(Metric):
    """Requests that succeeded within the SLO over the time in which they were due, one sample per step.

    That time is the schedule's, `n / rate`, the same for every server: all good gives the requested rate. Where none is
    good, half a request counts, because a comparison is of logarithms.
    Source: DistServe (OSDI 2024), TTFT and TPOT bounds per request.
    """

    unit: ClassVar[str] = "requests/s"
    better: ClassVar[Literal["lower", "higher"]] = "higher"

    ttft_ms: float | None = None
    """The longest TTFT of a good request, from when it was due."""
    tpot_ms: float | None = None
    """The longest time per output token of a good request."""

    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """Requests per second, once; none for fewer than two requests, which have no rate."""
        due = [reply.due_ns for reply in replies if reply.due_ns is not None]
        span_s = (max(due) - min(due)) / 1e9 if due else 0.0
        if span_s <= 0:
            return ()
        window_s = span_s * len(due) / (len(due) - 1)
        return (max(sum(map(self.is_good, replies)), 0.5) / window_s,)

    def is_good(self, reply: Reply) -> bool:
        """Whether this one met every bound. A TPOT that cannot be told meets none; one read took no time per token."""
        if reply.failure is not None or reply.ttft_ms is None:
            return False
        if self.ttft_ms is not None and reply.ttft_ms > self.ttft_ms:
            return False
        if self.tpot_ms is None or reply.first_ns == reply.last_ns:
            return True
        return reply.tpot_ms is not None and reply.tpot_ms <= self.tpot_ms
