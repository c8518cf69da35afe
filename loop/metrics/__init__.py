"""A metric: replies of one step to samples with a unit and a direction. One file per metric; its stem is its name.

Latencies count from when a request was due: in a closed loop that is when it was sent. Canaries are work like any other
to what spans a whole step, and left out of what is told per request: they have other texts in every session.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar, Literal

from loop.record import Record
from loop.replies import Reply


class Metric(Record, ABC):
    """Samples from successful replies. A missing sample stays missing; it is never 0. Its fields are its settings."""

    unit: ClassVar[str]
    better: ClassVar[Literal["lower", "higher"]]

    @abstractmethod
    def samples(self, replies: Sequence[Reply]) -> tuple[float, ...]:
        """The samples of one step, in sending order."""

    def value(self, replies: Sequence[Reply]) -> float | None:
        """The step's value: the mean of its samples, or None without any."""
        samples = self.samples(replies)
        return fmean(samples) if samples else None


def span_ms(replies: Sequence[Reply]) -> float | None:
    """From the first request that was due to the last token received, or None if nothing came back."""
    due = [reply.due_ns for reply in replies if reply.due_ns is not None]
    last = [reply.last_ns for reply in replies if reply.last_ns is not None]
    return (max(last) - min(due)) / 1e6 if due and last else None
