"""Nsight Compute: counters of single kernels. Each is run again and again, so nothing it says of time is of service."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx

from loop.errors import UnfitError
from loop.profilers import LoadName, Target, Wrapper, find_program

DRIVER = Path("/proc/driver/nvidia/params")
INSTALL = "install Nsight Compute (the package nsight-compute of CUDA's repository) and put ncu on PATH"


class Ncu(Wrapper):
    """`report.ncu-rep`: the first kernels of a decode step. The report is written when the server ends."""

    name: ClassVar[str] = "ncu"
    loads: ClassVar[tuple[LoadName, ...]] = ("decode",)
    is_alone: ClassVar[bool] = True

    kernel: str = ""
    """A regular expression for the names of kernels; empty for all."""
    num_kernels: int = 50
    metrics: str = "basic"
    """A set of Nsight Compute's: basic, detailed, full."""

    def check(self, target: Target) -> None:
        """It must be there, and the driver must let it read counters."""
        if find_program("ncu", target) is None:
            by_hand = " ".join([*self._options(Path()), target.python, "-m sglang.launch_server ..."])
            raise UnfitError(f"ncu is not installed; by hand: ncu {by_hand}", next=INSTALL)
        restricted = DRIVER.exists() and "RmProfilingAdminOnly: 1" in DRIVER.read_text()
        if restricted and os.geteuid() != 0:
            raise UnfitError(
                "the driver gives performance counters to root only (RmProfilingAdminOnly: 1)",
                next="run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
            )

    def command(self, target: Target, directory: Path) -> list[str]:
        """From the start on, but nothing is counted before the range opens."""
        return [find_program("ncu", target) or "ncu", *self._options(directory)]

    def _options(self, directory: Path) -> list[str]:
        chosen = ["--kernel-name", f"regex:{self.kernel}"] if self.kernel else []
        return [
            *("--target-processes", "all", "--graph-profiling", "node", "--profile-from-start", "off"),
            *("--set", self.metrics, "--launch-count", str(self.num_kernels), *chosen),
            *("--export", str(directory / "report")),
        ]

    @contextmanager
    def watch(self, target: Target, load: LoadName, directory: Path) -> Iterator[None]:
        """Open the range, and close it after the traffic."""
        wish = {"activities": ["CUDA_PROFILER"], "output_dir": str(directory.resolve())}
        (directory / "ncu.txt").write_text(" ".join(self.command(target, directory)) + "\n")
        try:
            httpx.post(f"{target.url}/start_profile", json=wish, timeout=60, trust_env=False).raise_for_status()
            yield
            httpx.post(f"{target.url}/stop_profile", timeout=600, trust_env=False)
        except httpx.HTTPError as problem:
            raise UnfitError(f"the server did not open the range: {problem}", next=f"read {target.log}") from None
