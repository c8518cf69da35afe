"""There is room for the model."""

from collections.abc import Iterator
from typing import ClassVar

import psutil

from loop.checkpoint import weight_files
from loop.checks import Check, Finding, Setup, Stage, gib


class Memory(Check):
    """On the GPUs together where there are some, else in main memory."""

    stage: ClassVar[Stage] = "machine"

    comfortable: float = 1.5
    """Free memory over the size of the weights; with less, little is left for the KV cache."""

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Free memory against the weights."""
        weights = sum(path.stat().st_size for path in weight_files(setup.model))
        with setup.open_gpus() as gpus:
            free_on_gpus = [gpu.memory_free_bytes for gpu in gpus.read() if gpu.memory_free_bytes is not None]
        free = sum(free_on_gpus) if free_on_gpus else psutil.virtual_memory().available
        where = "on the GPUs" if free_on_gpus else "in main memory"
        text = f"{gib(free)} free {where}, the weights take {gib(weights)}"
        action = "end what holds the memory, or take a larger device"
        if weights > free:
            yield self.unfit(text, action)
        elif weights * self.comfortable > free:
            yield self.warn(text, action)
        else:
            yield self.ok(text)
