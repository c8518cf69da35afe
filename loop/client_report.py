"""What the client knows about itself: it must not be what is measured."""

from collections.abc import Sequence
from statistics import median
from time import monotonic

from loop.clock import Clock
from loop.record import Record
from loop.replies import Reply

LAG_PROBE_S = 0.01
MIN_FOR_P99 = 100
"""Of fewer values, the 99th percentile is only the largest under another name."""


class Punctuality(Record):
    """How well an open loop kept its schedule. It waits for no answer, so lateness is the client's own."""

    requested_rate_per_s: float | None
    """Requests per second between the first and the last on the schedule; None for a single request."""
    achieved_rate_per_s: float | None
    """Requests per second between the first and the last that were sent."""
    delay_p50_ms: float | None
    """`sent - scheduled`; None if nothing was sent."""
    delay_p99_ms: float | None
    """None for fewer than 100 requests."""
    delay_max_ms: float | None

    @property
    def achieved_share(self) -> float | None:
        """Achieved over requested rate."""
        if not self.requested_rate_per_s or self.achieved_rate_per_s is None:
            return None
        return self.achieved_rate_per_s / self.requested_rate_per_s


class ClientReport(Record):
    """One step as the client saw itself."""

    started_at_ns: int
    """Wall clock, for the record only: every duration is monotonic."""
    wall_s: float
    cpu_s: float
    """CPU time of the client's process while the traffic flowed: what is reckoned afterwards delays nobody."""
    loop_lag_p99_ms: float | None
    """How late its event loop was in 99 % of the time, and so every time it took; None for less than a second."""
    num_connections: int
    num_late_connections: int = 0
    """Those opened while the clock ran, because all others were busy or closed."""
    e2e_p50_ms: float | None = None
    """Median end-to-end latency, `last token - sent`: what the lag is held against."""
    outside_server_p50_ms: float | None = None
    """Median over requests of that latency minus the server's own; None where the server reports none."""
    outside_server_p50_share: float | None = None
    """Median of the same as a share of the latency."""
    punctuality: Punctuality | None = None
    """None for a closed loop."""

    @property
    def cpu_share(self) -> float:
        """Cores the client used: `cpu_s / wall_s`. It has one thread, so at 1 it was the bottleneck."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class LagProbe:
    """Rings every 10 ms on an absolute schedule: a stall counts once for every ring that it delayed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_s = 0.0
        self.lags_ms: list[float] = []

    def start(self) -> None:
        """Rings until the clock is closed."""
        self._due_s = monotonic() + LAG_PROBE_S
        self._clock.call_at(self._due_s, self._ring)

    def _ring(self, now_s: float) -> None:
        self.lags_ms.append((now_s - self._due_s) * 1e3)
        self._due_s += LAG_PROBE_S
        self._clock.call_at(self._due_s, self._ring)


def outside_server(replies: Sequence[Reply]) -> tuple[float | None, float | None]:
    """(median milliseconds, median share) of the latency that the server knows nothing of."""
    gaps = [
        (reply.sent_to_last_ms - reply.server_e2e_s * 1e3, reply.sent_to_last_ms)
        for reply in replies
        if reply.sent_to_last_ms and reply.server_e2e_s is not None
    ]
    if not gaps:
        return None, None
    return median(gap for gap, _ in gaps), median(gap / whole for gap, whole in gaps)


def punctuality(replies: Sequence[Reply]) -> Punctuality | None:
    """How the schedule of these replies was kept; None if they had none."""
    due = [reply.scheduled_ns for reply in replies if reply.scheduled_ns is not None]
    if not due:
        return None
    sent = [r.sent_ns for r in replies if r.sent_ns is not None]
    delays = [
        (r.sent_ns - r.scheduled_ns) / 1e6 for r in replies if r.sent_ns is not None and r.scheduled_ns is not None
    ]
    return Punctuality(
        requested_rate_per_s=_rate_per_s(due),
        achieved_rate_per_s=_rate_per_s(sent),
        delay_p50_ms=median(delays) if delays else None,
        delay_p99_ms=p99(delays),
        delay_max_ms=max(delays, default=None),
    )


def p99(values: Sequence[float]) -> float | None:
    """The 99th percentile by linear interpolation, or None for fewer than 100 values."""
    if len(values) < MIN_FOR_P99:
        return None
    ordered = sorted(values)
    place = 0.99 * (len(ordered) - 1)
    below = int(place)
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def _rate_per_s(times_ns: Sequence[int]) -> float | None:
    span_ns = max(times_ns) - min(times_ns) if times_ns else 0
    return (len(times_ns) - 1) / (span_ns / 1e9) if span_ns > 0 else None
