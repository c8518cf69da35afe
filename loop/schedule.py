"""What will happen in a round: its sessions in order, and the steps of each. Pure."""

from collections.abc import Sequence
from typing import Literal

from loop.errors import InputError
from loop.record import Record
from loop.suites import LoadedSuite

Arm = Literal["A", "B"]
Protocol = Literal["aba", "abba", "ababa"]
ORDERS: dict[str, str] = {"aba": "ABA", "abba": "ABBA", "ababa": "ABABA"}
"""A brackets B on both sides, so that a drift of the machine cannot pass for an effect."""
EXTENDS = ("aba",)
"""Protocols that go on with one more B and A when they end undecided."""


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
    canaries: tuple[str, ...] = ()
    """The sessions whose canaries it sends: its own, or those of the Bs that it follows."""


def plan_sessions(protocol: str, suite: LoadedSuite) -> tuple[SessionPlan, ...]:
    """The sessions of a round, in order; raises InputError for a protocol that is not known."""
    if protocol not in ORDERS:
        raise InputError(f"no protocol called {protocol!r}; known: {', '.join(ORDERS)}")
    steps = _steps(suite)
    order, seen = ORDERS[protocol], {"A": 0, "B": 0}
    labels: list[str] = []
    for arm in order:
        seen[arm] += 1
        labels.append(arm if (arm == "B" and order.count("B") == 1) else f"{arm}{seen[arm]}")
    return tuple(
        SessionPlan(label=label, arm="A" if arm == "A" else "B", steps=steps, canaries=owners)
        for arm, label, owners in zip(order, labels, _owners(labels), strict=True)
    )


def extension(sessions: Sequence[SessionPlan]) -> tuple[SessionPlan, ...]:
    """One more B and one more A after these: their values count beside the first ones."""
    numbers = {arm: sum(session.arm == arm for session in sessions) + 1 for arm in ("A", "B")}
    steps = sessions[0].steps
    b, a = f"B{numbers['B']}", f"A{numbers['A']}"
    owners = (b,) * len(sessions[0].canaries)
    return (
        SessionPlan(label=b, arm="B", steps=steps, canaries=owners),
        SessionPlan(label=a, arm="A", steps=steps, canaries=owners),
    )


def _owners(labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Whose canaries each session sends. An A repeats those of all the Bs right before it; every other has its own.

    All send as many, so that every session does the same work: a part for each B in the longest row of them.
    """
    rows: list[tuple[str, ...]] = []
    row: tuple[str, ...] = ()
    for label in labels:
        if label.startswith("B"):
            row = (*row, label)
            rows.append((label,))
        else:
            rows.append(row or (label,))
            row = ()
    num_parts = max(map(len, rows))
    return [tuple(owners[part % len(owners)] for part in range(num_parts)) for owners in rows]


def _steps(suite: LoadedSuite) -> tuple[Step, ...]:
    """What every session does: correctness before performance, then every pass of every workload.

    Passes are the outer loop, so that a slow minute of the machine touches every workload a little.
    """
    timed = [
        Step(kind="timed", workload=workload.id, pass_index=index)
        for index in range(max(workload.passes for workload in suite.suite.workload))
        for workload in suite.suite.workload
        if index < workload.passes
    ]
    return (Step(kind="check"), *timed)
