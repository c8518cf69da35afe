"""A table: one question put to a capture. One file per table; its stem is its name, its class's fields its settings."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from loop.analysis.capture import Capture
from loop.record import Record


class Advice(Record):
    """What to make of a table."""

    look_first: str
    """The row or number that matters most, in a sentence."""
    next_edit: str
    """One change to try next, or to find out next."""


class Filled(Record):
    """A table of one capture."""

    table: str
    title: str
    columns: dict[str, str]
    """Name → meaning, in order."""
    brief: tuple[str, ...]
    """The columns that fit on a terminal."""
    rows: tuple[dict[str, Any], ...]
    why_empty: str = ""
    advice: Advice | None = None


class Table(Record, ABC):
    """A question. `rows` is a pure function of the capture."""

    name: ClassVar[str]
    title: ClassVar[str]
    row: ClassVar[type[Record]]
    """The record that one row is: its fields are the columns, their docstrings what they mean."""
    brief: ClassVar[tuple[str, ...]]
    """Its columns that fit on a terminal."""

    @abstractmethod
    def rows(self, capture: Capture) -> tuple[Any, ...]:
        """The rows, the most important first."""

    @abstractmethod
    def advise(self, capture: Capture, rows: Sequence[Any]) -> Advice:
        """What to look at first, and one edit. Called only if there are rows."""

    def why_empty(self, capture: Capture) -> str:
        """Why there are no rows, and what would give some."""
        return "nothing of this kind is in the trace"

    def fill(self, capture: Capture) -> Filled:
        """The table of one capture."""
        rows = self.rows(capture)
        return Filled(
            table=self.name,
            title=self.title,
            columns=describe(self.row),
            brief=self.brief,
            rows=tuple(row.document() for row in rows),
            why_empty="" if rows else self.why_empty(capture),
            advice=self.advise(capture, rows) if rows else None,
        )


def describe(row: type[Record]) -> dict[str, str]:
    """A record's fields with what their docstrings say."""
    return {name: " ".join((field.description or "").split()) for name, field in row.model_fields.items()}


NO_KERNELS = (
    "the trace holds no kernels: on a CPU the table `operators` says where time goes; on a GPU profile again with the "
    'activities "CPU" and "GPU"'
)


def share_pct(part: float, whole: float) -> float:
    """Per cent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0
