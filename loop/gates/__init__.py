"""A gate: a reason to refuse, as a pure function of what was recorded. One file per gate; its stem is its name."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from loop.compare import Comparison
from loop.devices import Peaks
from loop.effective import Effective
from loop.environment import Environment
from loop.measure import Measurement, read_artifact
from loop.record import Record
from loop.replies import Reply
from loop.session import Session
from loop.suites import LoadedSuite
from loop.weights import Weights

Purpose = Literal["candidate", "calibration", "confirmation"]
"""Why a round is run: to try a candidate, to see the noise of A against A, to measure a win afresh."""


class GateResult(Record):
    """What one gate found."""

    gate: str
    outcome: Literal["passed", "refused", "uninformative"]
    """`uninformative`: the baseline itself does not meet the bar, so nothing can be said about the candidate."""
    reason: str
    """A code: the gate's name, or a finer one."""
    text: str
    """The finding in one sentence, with the numbers."""
    values: dict[str, float] = {}
    worst: tuple[str, ...] = ()
    """The worst cases, for the report."""


class Bracket(Record):
    """A round's sessions, A around B, with what they were of: all that gates and the judge may look at."""

    purpose: Purpose = "candidate"
    suite: LoadedSuite
    derived: dict[str, frozenset[str]]
    """Setting → others that the engine itself changes with it."""
    baseline: Effective
    candidate: Effective
    sessions: tuple[Session, ...]
    comparisons: tuple[Comparison, ...]
    raw: Path
    environment: Environment | None = None
    """What the round was planned with."""
    weights: Weights | None = None
    """Of the model."""
    peaks: Peaks | None = None
    """Of the device."""
    earlier: tuple[float, ...] = ()
    """What sessions of the baseline's content came to as a whole in earlier rounds, as `all` has it: less is better."""

    def arm(self, arm: str) -> tuple[Session, ...]:
        """The sessions of one arm, in order."""
        return tuple(session for session in self.sessions if session.arm == arm)

    def replies(self, session: Session, kind: str, workload: str | None = None) -> Iterator[Reply]:
        """The replies of a session's steps of one kind, in sending order."""
        for measurement in session.measured(kind, workload):
            yield from self.replies_in(measurement)

    def replies_in(self, measurement: Measurement) -> tuple[Reply, ...]:
        """The replies of one step, in sending order."""
        return _cached_replies(measurement.raw, self.raw)

    def after(self, session: Session) -> Session | None:
        """The first A after a session, or None if there is none."""
        place = self.sessions.index(session)
        return next((other for other in self.sessions[place + 1 :] if other.arm == "A"), None)

    def pairs(self, a: Session, b: Session, kind: str, workload: str | None = None) -> list[tuple[Reply, Reply]]:
        """Replies of two sessions to the same request; a request that one session lacks is left out."""
        other = {reply.rid: reply for reply in self.replies(b, kind, workload)}
        return [(reply, other[reply.rid]) for reply in self.replies(a, kind, workload) if reply.rid in other]


class Gate(Record, ABC):
    """A gate's fields are its settings; a suite may change them under `[gates.<name>]`."""

    name: ClassVar[str]
    needs_timing: ClassVar[bool] = True
    """False if it can be asked as soon as the candidate's correctness step is done."""

    @abstractmethod
    def check(self, bracket: Bracket) -> GateResult:
        """The finding. Reads only `bracket`; never raises for a bad candidate."""

    def passed(self, text: str, values: Mapping[str, float] | None = None) -> GateResult:
        """The candidate passes."""
        return GateResult(gate=self.name, outcome="passed", reason=self.name, text=text, values=dict(values or {}))

    def refused(
        self, text: str, values: Mapping[str, float] | None = None, *, reason: str = "", worst: tuple[str, ...] = ()
    ) -> GateResult:
        """The candidate is refused, for good: no later harness may overrule it for the same content hash."""
        return GateResult(
            gate=self.name,
            outcome="refused",
            reason=reason or self.name,
            text=text,
            values=dict(values or {}),
            worst=worst,
        )

    def uninformative(self, text: str, values: Mapping[str, float] | None = None, *, reason: str) -> GateResult:
        """The baseline does not meet the bar itself: the round is invalid, not the candidate bad."""
        return GateResult(gate=self.name, outcome="uninformative", reason=reason, text=text, values=dict(values or {}))


_cached_replies = lru_cache(maxsize=256)(read_artifact)
"""Several gates read the same replies."""
