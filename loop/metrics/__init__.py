"""A metric: replies of one step to samples with a unit and a direction. One file per metric; its stem is its name."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar, Literal

from loop.record import Record
from loop.replies import Reply


class Metric(Record, ABC):
    """Samples from successful replies. A missing sample stays missing; it is never 0."""

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
    """From the first request sent to the last token received, or None if nothing came back."""
    sent = [reply.sent_ns for reply in replies if reply.sent_ns is not None]
    last = [reply.last_ns for reply in replies if reply.last_ns is not None]
    return (max(last) - min(sent)) / 1e6 if sent and last else None
