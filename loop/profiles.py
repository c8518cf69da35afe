"""Profiles: what was collected of a server in a session that was not timed, and what it says in a few lines."""

from typing import Literal

from loop.measure import Artifact
from loop.profilers import LoadName
from loop.record import Record
from loop.schedule import Arm

Kind = Literal["mapping", "formal"]
"""mapping: graphs off, stacks and shapes, for who launches what; formal: as it is served, for how long it takes."""


class Harvest(Record):
    """What one profiler left under one load, or why it left nothing."""

    profiler: str
    load: LoadName
    files: tuple[Artifact, ...]
    problem: str | None = None
    """What it lacked, and what to do."""


class Highlight(Record):
    """One of the busiest rows of a profile."""

    table: Literal["kernels", "operators", "functions"]
    where: str
    """The stage of the forward pass, or the process."""
    name: str
    location: str | None
    """Python function that launched it."""
    share_pct: float
    """Of the stage's time, or of the process's samples (as the innermost function)."""


class Profile(Record):
    """One session in which a server was looked at."""

    label: str
    """`A-profile`, `B-profile`; `mapping` and `formal` of `loop profile`."""
    arm: Arm | None
    kind: Kind
    bundle: str
    bundle_sha256: str
    started_utc: str
    seconds: float
    workload: str
    harvests: tuple[Harvest, ...]
    highlights: tuple[Highlight, ...] = ()
    crash: str | None = None
    """Why it ended early."""


class Moved(Record):
    """A kernel, or on a CPU an operator, whose time a forward pass of the candidate changed."""

    stage: str
    status: str
    """appeared, vanished, slower, faster."""
    name: str
    location: str | None
    before_us: float
    """A pass."""
    after_us: float


class StageChange(Record):
    """All work of a stage, A against B."""

    stage: str
    before_us: float
    """A pass."""
    after_us: float

    @property
    def gain_pct(self) -> float:
        """Positive is less time."""
        return 100.0 * (1 - self.after_us / self.before_us) if self.before_us else 0.0


class Profiled(Record):
    """What the profiled sessions of a round found. It proves nothing of speed: a profiler slows what it looks at."""

    profiles: tuple[Profile, ...]
    stages: tuple[StageChange, ...] = ()
    moved: tuple[Moved, ...] = ()
    """The largest change first."""
    expectation: str | None = None
    """What was expected before the round, against what the profiles say moved."""
