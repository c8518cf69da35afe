"""What will happen in a round: its sessions in order, and the steps of each. Pure."""

from typing import Literal

from loop.errors import InputError
from loop.record import Record
from loop.suites import LoadedSuite

Arm = Literal["A", "B"]
Protocol = Literal["aba", "abba", "ababa"]
ORDERS: dict[str, str] = {"aba": "ABA", "abba": "ABBA", "ababa": "ABABA"}
"""A brackets B on both sides, so that a drift of the machine cannot pass for an effect."""


class Step(Record):
    """One pass of traffic in a session."""

    kind: Literal["check", "timed"]
    workload: str | None = None
    """None for a correctness step."""
    pass_index: int = 0

    @property
    def name(self) -> str:
        """A name for files and progress: `check`, `short_in_long_out-0`."""
        return self.kind if self.workload is None else f"{self.workload}-{self.pass_index}"


class SessionPlan(Record):
    """One server lifetime of one arm."""

    label: str
    """`A1`, `B`, `A2`; numbered where an arm has several sessions."""
    arm: Arm
    steps: tuple[Step, ...]


def plan_sessions(protocol: str, suite: LoadedSuite) -> tuple[SessionPlan, ...]:
    """The sessions of a round. Every session checks first: correctness before performance."""
    if protocol not in ORDERS:
        raise InputError(f"no protocol called {protocol!r}; known: {', '.join(ORDERS)}")
    check = Step(kind="check")
    # Passes are the outer loop, so that a slow minute of the machine touches every workload a little.
    num_passes = max(workload.passes for workload in suite.suite.workload)
    timed = [
        Step(kind="timed", workload=workload.id, pass_index=index)
        for index in range(num_passes)
        for workload in suite.suite.workload
        if index < workload.passes
    ]
    seen = {"A": 0, "B": 0}
    sessions = []
    for arm in ORDERS[protocol]:
        seen[arm] += 1
        label = arm if (arm == "B" and ORDERS[protocol].count("B") == 1) else f"{arm}{seen[arm]}"
        sessions.append(SessionPlan(label=label, arm="A" if arm == "A" else "B", steps=(check, *timed)))
    return tuple(sessions)
