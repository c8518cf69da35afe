"""Clocks are not held down by heat, power or a fault."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage
from loop.gpus import HARMLESS, GpuReading


class Clocks(Check):
    """Of every GPU that CUDA_VISIBLE_DEVICES leaves."""

    stage: ClassVar[Stage] = "machine"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Now, at rest: what holds them down now will under load."""
        with setup.open_gpus() as gpus:
            readings = gpus.read()
        if not readings:
            yield self.ok("no GPU to ask")
        for gpu in readings:
            limits = [reason for reason in gpu.reasons or () if reason not in HARMLESS]
            if limits:
                yield self.warn(
                    f"{_said(gpu)}, held down by {', '.join(limits)}",
                    "let it cool, look at its power limit, or take another GPU",
                )
            else:
                yield self.ok(_said(gpu))


def _said(gpu: GpuReading) -> str:
    """`GPU 0: SM 1980 of 1980 MHz, 35 °C, 90 W`."""
    known = [
        f"SM {gpu.sm_clock_mhz:.0f} of {gpu.max_sm_clock_mhz:.0f} MHz"
        if gpu.sm_clock_mhz is not None and gpu.max_sm_clock_mhz is not None
        else "",
        f"{gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else "",
        f"{gpu.power_w:.0f} W" if gpu.power_w is not None else "",
    ]
    return f"GPU {gpu.index}: {', '.join(filter(None, known)) or 'says nothing'}"
