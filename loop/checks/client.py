"""The timed client takes tokens faster than the server will send them."""

from collections.abc import Iterator
from typing import ClassVar

from loop.ceiling import measure_ceiling
from loop.checks import Check, Finding, Setup, Stage
from loop.ledger import Ledger

NUM_ROUNDS = 50
"""The latest ones say what servers here reach."""


class Client(Check):
    """Against the fake server, 64 streams of a token a millisecond each."""

    stage: ClassVar[Stage] = "rehearsal"

    seconds: float = 2.0
    max_share: float = 0.5
    """Of the ceiling: a client that works harder is part of what it measures."""
    assumed_tokens_per_s: float = 300.0
    """Of each stream, while no round is stored: a 4B model on an H200."""

    def find(self, setup: Setup) -> Iterator[Finding]:
        """The ceiling, and what the suite needs of it."""
        need, basis = self._need(setup)
        ceiling = measure_ceiling(self.seconds)
        text = (
            f"takes {ceiling.tokens_per_s:,.0f} tokens/s at {ceiling.cpu_us_per_token:.0f} µs of CPU each; "
            f"{setup.suite.id} needs {need:,.0f} ({basis})"
        )
        if need > self.max_share * ceiling.tokens_per_s:
            yield self.warn(text, "free the CPUs, or measure from a machine with more of them")
        else:
            yield self.ok(text)

    def _need(self, setup: Setup) -> tuple[float, str]:
        """(tokens per second that the client must take, where that is known from)."""
        seen = _fastest(setup.ledger, setup.suite.sha256)
        if seen is not None:
            return seen, "the most in stored rounds"
        suite = setup.suite
        widest = max(
            len(suite.traffic[workload.id]) if workload.kind == "offline" else workload.concurrency
            for workload in suite.suite.workload
        )
        return widest * self.assumed_tokens_per_s, f"assumed: {widest} streams of {self.assumed_tokens_per_s:.0f}"


def _fastest(ledger: Ledger, suite_sha256: str) -> float | None:
    """The highest rate of a timed step with this suite in the latest rounds."""
    rates = [
        measurement.num_tokens / measurement.client.wall_s
        for round_id in ledger.ids()[-NUM_ROUNDS:]
        for round_ in [ledger.read(round_id)]
        if round_.suite.sha256 == suite_sha256
        for session in round_.sessions
        for measurement in session.measured("timed")
        if measurement.client.wall_s > 0
    ]
    return max(rates, default=None)
