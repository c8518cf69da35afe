"""The client must not be what was measured: busy, late, or behind its own schedule, it says nothing about a server."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import ClassVar

from loop.client_report import ClientReport
from loop.gates import Bracket, Gate, GateResult


class ClientBound(Gate):
    """Looks at what the client reports about itself, per session and workload; the median of the passes counts.

    Source of the bars: docs/method.md, "The client". A share and milliseconds must both be exceeded, because a share of
    a short request and a millisecond of a long one say nothing.
    """

    name: ClassVar[str] = "client_bound"
    needs_timing: ClassVar[bool] = False
    """It passes where nothing was timed, and holds no A against another: one is enough."""

    max_cpu_share: float = 0.7
    """Cores. The client has one thread; above this, its own queue is in every latency."""
    max_outside_ms: float = 1.0
    max_outside_share: float = 0.05
    """Of a request's latency, what the server does not know of: the client's and the network's."""
    max_lag_ms: float = 2.0
    max_lag_share: float = 0.05
    """Of the median latency, how late the client's event loop may run, or an open loop's requests leave."""
    min_rate_share: float = 0.98
    """Of the requested rate, what an open loop must achieve."""

    def check(self, bracket: Bracket) -> GateResult:
        """The first workload of the first session that was client-bound makes the round invalid."""
        if not all(session.measured("timed") for session in bracket.sessions):
            return self.passed("not every session was timed: no speed to doubt")
        shares = [0.0]
        for session in bracket.sessions:
            for workload in bracket.suite.suite.workload:
                reports = [m.client for m in session.measured("timed", workload.id)]
                found = next(self._findings(reports), None) if reports else None
                if found is not None:
                    text, reason = found
                    return self.uninformative(f"{workload.id} in {session.label}: {text}", reason=reason)
                shares.append(_busy(reports))
        return self.passed(f"the client used {max(shares):.2f} of a core at most", {"cpu_share": max(shares)})

    def _findings(self, reports: Sequence[ClientReport]) -> Iterator[tuple[str, str]]:
        """(what was found and what to do about it, reason code)."""
        busy = _busy(reports)
        if busy > self.max_cpu_share:
            found = (
                f"the client used {busy:.2f} of a core (at most {self.max_cpu_share:.2f}): its own speed was measured"
            )
            yield f"{found}; send fewer streams or a lower rate, or give it a faster core", "client_bound"
        kept = [report.punctuality.achieved_share for report in reports if report.punctuality is not None]
        share = _median(kept)
        if share is not None and share < self.min_rate_share:
            found = f"{100 * share:.1f} % of the requested rate was sent (at least {100 * self.min_rate_share:.0f} %)"
            yield f"{found}; lower rate_per_s, or end what else runs on this machine", "rate_not_reached"
        latency_ms = _median([report.e2e_p50_ms for report in reports])
        for what, late_ms in (
            ("its event loop ran", _median([report.loop_lag_p99_ms for report in reports])),
            ("requests left", _median([_delay_ms(report) for report in reports])),
        ):
            if late_ms is not None and latency_ms is not None and self._is_late(late_ms, latency_ms):
                found = f"{what} {late_ms:.1f} ms late, {100 * late_ms / latency_ms:.0f} % of a request"
                bar = f"(at most {self.max_lag_ms:.0f} ms or {100 * self.max_lag_share:.0f} %)"
                yield f"{found} {bar}; end what else runs on this machine, or leave the client a core", "client_bound"
        outside_ms = _median([report.outside_server_p50_ms for report in reports])
        outside = _median([report.outside_server_p50_share for report in reports])
        if outside_ms is None or outside is None:
            return
        if outside_ms > self.max_outside_ms and outside > self.max_outside_share:
            found = f"{outside_ms:.1f} ms or {100 * outside:.0f} % of a request passed outside the server"
            bar = f"(at most {self.max_outside_ms:.0f} ms or {100 * self.max_outside_share:.0f} %)"
            yield f"{found} {bar}; end what else runs on this machine, or send longer requests", "client_bound"

    def _is_late(self, late_ms: float, latency_ms: float) -> bool:
        return late_ms > self.max_lag_ms and late_ms > self.max_lag_share * latency_ms


def _busy(reports: Sequence[ClientReport]) -> float:
    """Cores that the client used, over all passes."""
    wall_s = sum(report.wall_s for report in reports)
    return sum(report.cpu_s for report in reports) / wall_s if wall_s > 0 else 0.0


def _delay_ms(report: ClientReport) -> float | None:
    """How late an open loop's requests left: 99 % of them, or half of them where they are too few to say more."""
    if report.punctuality is None:
        return None
    delay_ms = report.punctuality.delay_p99_ms
    return report.punctuality.delay_p50_ms if delay_ms is None else delay_ms


def _median(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
