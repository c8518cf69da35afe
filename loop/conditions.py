"""Conditions: what the machine was like while a session was measured, and who else used it."""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Any, Self

import psutil

from loop.gpus import IDLE, GpuReading, Gpus
from loop.kernel_caches import find_caches, num_written
from loop.processes import CpuShare, Meter
from loop.record import Record

PERIOD_S = 1.0
MAX_COST_PCT = 0.5
"""On a machine with so many processes that a reading costs more of a core than this, readings are rarer."""

MEMORY_GRACE_S = 10.0
"""The driver takes a moment to give a dead process's memory back; a second was seen for 90 GB."""
MEMORY_SLACK_BYTES = 1 << 29
"""What the driver itself may keep more than before."""
MEMORY_POLL_S = 0.1


class Spread(Record):
    """A value over the readings of the timed part."""

    low: float
    median: float
    high: float


class GpuProcess(Record):
    """A process of somebody else on a GPU."""

    pid: int
    name: str | None
    """None where its id is of another container or of the host."""
    memory_bytes: int | None


class GpuConditions(Record):
    """One GPU that the server could use."""

    index: int
    name: str
    uuid: str
    sm_clock_mhz: Spread | None
    """While it worked: readings of an idle GPU are left out."""
    power_w: Spread | None
    temperature_c: Spread | None
    memory_before_bytes: int | None
    """In use before the server started."""
    memory_after_bytes: int | None
    """In use after it was gone, at most `MEMORY_GRACE_S` later."""
    memory_back_s: float | None = None
    """How long after its end the memory was back; None where it never was, or the driver does not say."""
    limited_pct: dict[str, float]
    """Why its clocks were below the maximum → in how many of the readings."""
    others: tuple[GpuProcess, ...]
    """Processes on it that were not the session's: before the server started, or during the timed part."""


class Conditions(Record):
    """Read once before the server starts, every second while traffic is timed, and once after the server is gone."""

    load_before: float
    """Load average of the last minute, before the server started."""
    load_after: float
    free_memory_before_bytes: int
    """What new processes could have, before the server started."""
    free_memory_low_bytes: int | None
    """The least during the timed part."""
    num_readings: int
    """During the timed part; 0 where nothing was timed."""
    cpu: CpuShare | None
    """Who else used the CPUs during the timed part."""
    gpus: tuple[GpuConditions, ...]
    """Empty without a GPU or without `pynvml`."""
    num_compiled_files: int | None = None
    """Written to the kernel caches from the first timed step to the last; None where nothing was timed."""


class Observer:
    """A context manager around a session, server and all. `start` and `stop` bound its timed part.

    `environ` is the server's: it says which GPUs it may use. `mark` tells its processes from others.
    """

    def __init__(
        self, mark: str, environ: Mapping[str, str], nvml: Any = None, *, grace_s: float = MEMORY_GRACE_S
    ) -> None:
        self._meter = Meter(mark)
        self._gpus = Gpus(environ, nvml)
        self._grace_s = grace_s
        self._caches = find_caches(environ)
        self._began_s: float | None = None
        self._ended_s = 0.0
        self._num_compiled_files: int | None = None
        self._free: list[int] = []
        self._readings: list[tuple[GpuReading, ...]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._strangers: dict[int, dict[int, GpuProcess]] = {}
        self._before: tuple[float, int, tuple[GpuReading, ...]] | None = None
        self.conditions: Conditions | None = None
        """Known once the context has been left."""

    def __enter__(self) -> Self:
        self._gpus.__enter__()
        gpus = self._gpus.read()
        self._before = (os.getloadavg()[0], psutil.virtual_memory().available, gpus)
        self._note_strangers(gpus)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._began_s is not None:
            self._num_compiled_files = num_written(self._caches, self._began_s, self._ended_s)
        self.conditions = self._summarize(*self._await_memory())
        self._gpus.__exit__(kind, value, trace)

    def start(self) -> None:
        """The timed part begins."""
        self._began_s = time.time()
        self._read()
        self._thread = threading.Thread(target=self._read_on, name="observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The timed part is over. Does nothing if there was none, or if it has been said before."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._ended_s = time.time()
        self._read()

    def _read_on(self) -> None:
        wait_s = PERIOD_S
        while not self._ended.wait(wait_s):
            began_s = time.thread_time()
            self._read()
            wait_s = max(PERIOD_S, (time.thread_time() - began_s) * 100 / MAX_COST_PCT)

    def _read(self) -> None:
        self._meter.read()
        self._free.append(psutil.virtual_memory().available)
        gpus = self._gpus.read()
        self._readings.append(gpus)
        # Inside a container our own server may show under the host's number: one that means nothing here is no finding.
        self._note_strangers(gpus, but=self._meter.own_pids, unseen=False)

    def _note_strangers(
        self, gpus: Sequence[GpuReading], *, but: frozenset[int] = frozenset(), unseen: bool = True
    ) -> None:
        """Remember who is on each GPU, but for these processes; `unseen` ones too, whose number means nothing here."""
        for gpu in gpus:
            known = self._strangers.setdefault(gpu.index, {})
            for pid in gpu.processes.keys() - known.keys() - but:
                name = name_of(pid)
                if name is not None or unseen:
                    known[pid] = GpuProcess(pid=pid, name=name, memory_bytes=gpu.processes[pid])

    def _await_memory(self) -> tuple[tuple[GpuReading, ...], float | None]:
        """(the GPUs once their memory is back, after how many seconds); None where it is not, or cannot be known."""
        assert self._before is not None
        wanted = [gpu.memory_used_bytes for gpu in self._before[2]]
        began_s = time.monotonic()
        while True:
            gpus, waited_s = self._gpus.read(), time.monotonic() - began_s
            used = [gpu.memory_used_bytes for gpu in gpus]
            known = [
                (now, then) for now, then in zip(used, wanted, strict=True) if now is not None and then is not None
            ]
            if all(now <= then + MEMORY_SLACK_BYTES for now, then in known):
                return gpus, round(waited_s, 2) if known else None
            if waited_s >= self._grace_s:
                return gpus, None
            time.sleep(MEMORY_POLL_S)

    def _summarize(self, after: tuple[GpuReading, ...], memory_back_s: float | None) -> Conditions:
        assert self._before is not None
        load_before, free_before, gpus_before = self._before
        return Conditions(
            load_before=round(load_before, 2),
            load_after=round(os.getloadavg()[0], 2),
            free_memory_before_bytes=free_before,
            free_memory_low_bytes=min(self._free, default=None),
            num_readings=len(self._free),
            cpu=self._meter.share(),
            gpus=tuple(
                summarize_gpu(
                    first,
                    [reading[place] for reading in self._readings],
                    last,
                    self._strangers[first.index],
                    memory_back_s=memory_back_s,
                )
                for place, (first, last) in enumerate(zip(gpus_before, after, strict=True))
            ),
            num_compiled_files=self._num_compiled_files,
        )


def summarize_gpu(
    before: GpuReading,
    timed: Sequence[GpuReading],
    after: GpuReading,
    strangers: Mapping[int, GpuProcess],
    *,
    memory_back_s: float | None = None,
) -> GpuConditions:
    """The readings of one GPU as one record."""
    working = [reading for reading in timed if IDLE not in (reading.reasons or ())]
    limits = Counter(reason for reading in timed for reason in reading.reasons or ())
    return GpuConditions(
        index=before.index,
        name=before.name,
        uuid=before.uuid,
        sm_clock_mhz=_spread([reading.sm_clock_mhz for reading in working]),
        power_w=_spread([reading.power_w for reading in timed]),
        temperature_c=_spread([reading.temperature_c for reading in timed]),
        memory_before_bytes=before.memory_used_bytes,
        memory_after_bytes=after.memory_used_bytes,
        memory_back_s=memory_back_s,
        limited_pct={reason: round(100 * count / len(timed), 1) for reason, count in sorted(limits.items())},
        others=tuple(strangers[pid] for pid in sorted(strangers)),
    )


def name_of(pid: int) -> str | None:
    """What a process is called, or None where its number means nothing here."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(low=min(known), median=median(known), high=max(known)) if known else None
