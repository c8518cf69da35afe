"""Who uses the processor: time by process, and of all the CPUs that this process may use, from /proc."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from loop.host import MARK
from loop.record import Record

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NUM_NAMED = 3
MIN_NAMED_CORES = 0.05
"""A process that uses less is not worth its name."""

Key = tuple[int, int]
"""Process id and start time: ids are used again."""


class Sighting(NamedTuple):
    """One process at one instant."""

    parent: int
    name: str
    num_ticks: int
    """Time in user and kernel mode since it started."""
    cpu: int
    """Where it ran last."""


class BusyProcess(Record):
    """A process and what it used on average."""

    pid: int
    name: str
    cores: float


class CpuShare(Record):
    """What everybody else used of the CPUs that this process may use, in cores on average."""

    elapsed_s: float
    other_cores: float
    """By all processes but our own; those of other containers are counted, though they cannot be named."""
    stolen_cores: float
    """By the hypervisor, for other virtual machines."""
    busiest: tuple[BusyProcess, ...]
    """The largest of the others."""


class Meter:
    """Reads twice or more often; `share` is the difference. Own is this process, what it started, and what is marked.

    A process that ends between two readings is counted up to the reading before.
    """

    def __init__(
        self, mark: str | None = None, *, num_named: int = NUM_NAMED, min_named_cores: float = MIN_NAMED_CORES
    ) -> None:
        self._num_named = num_named
        self._min_named_cores = min_named_cores
        self._needle = f"{MARK}={mark}".encode() if mark else None
        self._cpus = os.sched_getaffinity(0)
        self._mine: set[Key] = set()
        self._known: set[Key] = set()
        self._first: dict[Key, int] = {}
        self._last: dict[Key, Sighting] = {}
        self._times: list[tuple[float, int, int]] = []

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes of ours that were ever seen."""
        return frozenset(pid for pid, _ in self._mine)

    def read(self) -> None:
        """Look at every process once: about 10 µs each."""
        busy, stolen = _read_cpus(self._cpus)
        seen = read_processes()
        for key, sighting in seen.items():
            # What appeared since the first reading has used all its time since then.
            self._first.setdefault(key, 0 if self._times else sighting.num_ticks)
        self._mine |= self._own_of(seen)
        self._known |= seen.keys()
        self._last.update(seen)
        self._times = [*self._times[:1], (time.monotonic(), busy, stolen)]

    def share(self) -> CpuShare | None:
        """Between the first and the last reading; None before the second."""
        if len(self._times) < 2:
            return None
        (began, busy_before, stolen_before), (ended, busy_after, stolen_after) = self._times
        elapsed_s = ended - began
        spent = {key: (last.num_ticks - self._first[key]) / TICKS_PER_S for key, last in self._last.items()}
        own_s = sum(seconds for key, seconds in spent.items() if key in self._mine)
        others = {
            key: seconds
            for key, seconds in spent.items()
            if key not in self._mine and self._last[key].cpu in self._cpus
        }
        total_s = (busy_after - busy_before) / TICKS_PER_S
        # Some sandboxes count nothing in /proc/stat; what can be seen of the others is then all that is known.
        other_s = max(0.0, total_s - own_s) if total_s else sum(others.values())
        largest = sorted(others.items(), key=lambda item: -item[1])[: self._num_named]
        return CpuShare(
            elapsed_s=round(elapsed_s, 3),
            other_cores=round(other_s / elapsed_s, 3),
            stolen_cores=round((stolen_after - stolen_before) / TICKS_PER_S / elapsed_s, 3),
            busiest=tuple(
                BusyProcess(pid=key[0], name=self._last[key].name, cores=round(seconds / elapsed_s, 3))
                for key, seconds in largest
                if seconds / elapsed_s >= self._min_named_cores
            ),
        )

    def _own_of(self, seen: dict[Key, Sighting]) -> set[Key]:
        """This process, its descendants, and marked processes: a mark is inherited, so each is asked once."""
        keys = {key[0]: key for key in seen}
        mine = {key for key in seen if key[0] == os.getpid() or key in self._mine}
        mine |= {key for key in seen.keys() - self._known - mine if self._carries_mark(key[0])}
        grown = True
        while grown:
            children = {key for key in seen.keys() - mine if keys.get(seen[key].parent) in mine}
            mine |= children
            grown = bool(children)
        return mine

    def _carries_mark(self, pid: int) -> bool:
        if self._needle is None:
            return False
        try:
            return self._needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False  # ended meanwhile, or another user's


def read_processes() -> dict[Key, Sighting]:
    """Every process that can be seen now."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        # `pid (name) state ppid ...`: a name may hold spaces and parentheses, the rest does not.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        key = (int(entry.name), int(fields[19]))
        found[key] = Sighting(
            parent=int(fields[1]),
            name=head.partition("(")[2],
            num_ticks=int(fields[11]) + int(fields[12]),
            cpu=int(fields[36]),
        )
    return found


def _read_cpus(cpus: set[int]) -> tuple[int, int]:
    """(ticks in user, nice and kernel mode, stolen ticks) of these CPUs. Interrupts belong to nobody."""
    busy = stolen = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            busy += sum(map(int, numbers[:3]))
            stolen += int(numbers[7])
    return busy, stolen
