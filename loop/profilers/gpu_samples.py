"""What the driver says of each GPU, ten times a second: clocks, power, temperature, memory, why it is slowed."""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from loop.errors import UnfitError
from loop.gpus import Gpus
from loop.profilers import Profiler, Target
from loop.ticks import ticking

COLUMNS = ("at_ms", "gpu", "sm_clock_mhz", "power_w", "temperature_c", "memory_used_bytes", "reasons")


class GpuSamples(Profiler):
    """One CSV, a row per GPU and reading; what the driver does not say is empty."""

    name: ClassVar[str] = "gpu_samples"

    period_s: float = 0.1

    def check(self, target: Target) -> None:
        """There must be a driver, and a module that asks it."""
        with Gpus(os.environ) as gpus:
            if not gpus.read():
                raise UnfitError(
                    "no GPU can be read through NVML",
                    next="on a machine with an NVIDIA GPU `pip install nvidia-ml-py`; elsewhere leave it out",
                )

    @contextmanager
    def watch(self, target: Target, load: str, directory: Path) -> Iterator[None]:
        """Read in a thread of our own."""
        with (
            Gpus(os.environ) as gpus,
            (directory / "gpu.csv").open("w", newline="") as file,
            ticking(self.period_s) as run,
        ):
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            run(lambda at_ms: writer.writerows(_rows(gpus, at_ms)))
            yield


def _rows(gpus: Gpus, at_ms: int) -> Iterator[tuple[object, ...]]:
    for gpu in gpus.read():
        yield (
            *(at_ms, gpu.index, gpu.sm_clock_mhz, gpu.power_w, gpu.temperature_c, gpu.memory_used_bytes),
            " ".join(gpu.reasons or ()),
        )
