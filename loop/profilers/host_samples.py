"""What each process of the server uses of the machine, ten times a second: processors, memory, threads, switches."""

import contextlib
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil

from loop.errors import UnfitError
from loop.profilers import Profiler, Target, processes_of
from loop.ticks import ticking

COLUMNS = ("at_ms", "pid", "process", "cpu_pct", "rss_bytes", "num_threads", "num_voluntary", "num_involuntary")


class HostSamples(Profiler):
    """One CSV; `cpu_pct` is of one core, switches count since the process began."""

    name: ClassVar[str] = "host_samples"

    period_s: float = 0.1

    def check(self, target: Target) -> None:
        """It must find the server's processes."""
        if not processes_of(target):
            raise UnfitError(f"the server's process {target.pid} is gone", next=f"read {target.log}")

    @contextmanager
    def watch(self, target: Target, load: str, directory: Path) -> Iterator[None]:
        """Read in a thread of our own."""
        processes = processes_of(target)
        with (directory / "host.csv").open("w", newline="") as file, ticking(self.period_s) as run:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            run(lambda at_ms: writer.writerows(row for process in processes if (row := _read(process, at_ms))))
            yield


def _read(process: psutil.Process, at_ms: int) -> tuple[Any, ...] | None:
    """A row, or None once the process has ended."""
    with contextlib.suppress(psutil.Error), process.oneshot():
        switches = process.num_ctx_switches()
        return (
            *(at_ms, process.pid, " ".join(process.cmdline())[:60], process.cpu_percent(None)),
            *(process.memory_info().rss, process.num_threads(), switches.voluntary, switches.involuntary),
        )
    return None
