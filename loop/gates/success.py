"""Every request of every step must succeed, in both arms."""

from typing import ClassVar

from loop.gates import Bracket, Gate, GateResult
from loop.session import Session
from loop.wording import count


class Success(Gate):
    """A failed request has no latency: a server that fails fast must not look fast."""

    name: ClassVar[str] = "success"

    def check(self, bracket: Bracket) -> GateResult:
        """Refuse failures of the candidate; failures of the baseline say nothing about it."""
        for session in bracket.arm("A"):
            if _failures(session):
                return self.uninformative(f"the baseline's {_sentence(session)}", reason="baseline_broken")
        for session in bracket.arm("B"):
            if _failures(session):
                worst = tuple(
                    f"{reply.rid}: {reply.failure}: {reply.error}"
                    for kind in ("check", "timed")
                    for reply in bracket.replies(session, kind)
                    if reply.failure
                )
                return self.refused(f"the candidate's {_sentence(session)}", reason="requests_failed", worst=worst[:10])
        total = sum(m.num_requests for session in bracket.sessions for m in session.measurements)
        return self.passed(f"all {count(total, 'request')} succeeded")


def _failures(session: Session) -> int:
    return sum(sum(measurement.failures.values()) for measurement in session.measurements)


def _sentence(session: Session) -> str:
    kinds: dict[str, int] = {}
    for measurement in session.measurements:
        for kind, number in measurement.failures.items():
            kinds[kind] = kinds.get(kind, 0) + number
    listed = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    total = sum(measurement.num_requests for measurement in session.measurements)
    return f"session {session.label} failed {_failures(session)} of {count(total, 'request')} ({listed})"
