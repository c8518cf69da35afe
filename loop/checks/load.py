"""Nobody else uses this machine."""

import os
import time
from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage, gib
from loop.conditions import name_of
from loop.processes import MIN_NAMED_CORES, NUM_NAMED, Meter


class Load(Check):
    """Processors for a second, GPUs at once."""

    stage: ClassVar[Stage] = "machine"

    seconds: float = 1.0
    max_cores: float = 0.3
    """What others may use on average."""
    num_named: int = NUM_NAMED
    min_named_cores: float = MIN_NAMED_CORES

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Who is busy, by name."""
        meter = Meter(num_named=self.num_named, min_named_cores=self.min_named_cores)
        meter.read()
        time.sleep(self.seconds)
        meter.read()
        share = meter.share()
        assert share is not None
        named = ", ".join(f"{p.name} (pid {p.pid}) {p.cores:.1f}" for p in share.busiest)
        text = f"others use {share.other_cores:.1f} cores, load average {os.getloadavg()[0]:.1f}"
        if share.other_cores > self.max_cores:
            yield self.warn(f"{text}: {named or 'nobody that can be seen from here'}", "end it, or wait for it")
        else:
            yield self.ok(text)
        if share.stolen_cores > self.max_cores:
            yield self.warn(
                f"the hypervisor takes {share.stolen_cores:.1f} cores away", "measure on a machine of your own"
            )
        with setup.open_gpus() as gpus:
            readings = gpus.read()
        for gpu in readings:
            for pid, used in gpu.processes.items():
                who = f"{name_of(pid) or 'a process of another container'} (pid {pid})"
                held = f" with {gib(used)}" if used is not None else ""
                yield self.warn(
                    f"{who} is on GPU {gpu.index}{held}", "end it, or set CUDA_VISIBLE_DEVICES to a free GPU"
                )
