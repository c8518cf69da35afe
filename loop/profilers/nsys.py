"""Nsight Systems: a timeline of all processes, kernels inside graphs and CUDA calls, over the steps of one decode."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import httpx

from loop.errors import UnfitError
from loop.profilers import LoadName, Target, Wrapper, find_program

POLL_S = 0.2
INSTALL = "install Nsight Systems (the package nsight-systems of CUDA's repository) and put nsys on PATH"


class Nsys(Wrapper):
    """`report.nsys-rep`. SGLang opens and closes the range that is recorded, as `/start_profile` asks it to."""

    name: ClassVar[str] = "nsys"
    loads: ClassVar[tuple[LoadName, ...]] = ("decode",)
    is_alone: ClassVar[bool] = True

    num_steps: int = 20
    written_s: float = 300.0

    def check(self, target: Target) -> None:
        """It must be there, and there must be something for it to see."""
        if find_program("nsys", target) is None:
            by_hand = " ".join([*self._options(Path()), target.python, "-m sglang.launch_server ..."])
            raise UnfitError(f"nsys is not installed; by hand: nsys {by_hand}", next=INSTALL)

    def command(self, target: Target, directory: Path) -> list[str]:
        """From the start on, but nothing is recorded before the range opens."""
        return [find_program("nsys", target) or "nsys", *self._options(directory)]

    def _options(self, directory: Path) -> list[str]:
        return [
            *("profile", "--trace=cuda,nvtx,osrt", "--trace-fork-before-exec=true", "--cuda-graph-trace=node"),
            *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=false", "--output", str(directory / "report")),
        ]

    @contextmanager
    def watch(self, target: Target, load: LoadName, directory: Path) -> Iterator[None]:
        """Open the range; it closes by itself after its steps, and then the report is written."""
        wish = {"activities": ["CUDA_PROFILER"], "num_steps": self.num_steps, "output_dir": str(directory.resolve())}
        try:
            httpx.post(f"{target.url}/start_profile", json=wish, timeout=60, trust_env=False).raise_for_status()
            yield
        except httpx.HTTPError as problem:
            raise UnfitError(f"the server did not open the range: {problem}", next=f"read {target.log}") from None
        wait_report(directory, ".nsys-rep", self.written_s, target)


def wait_report(directory: Path, suffix: str, written_s: float, target: Target) -> None:
    """Until the report is there and has stopped growing; raises UnfitError."""
    deadline, size = time.monotonic() + written_s, -1
    while time.monotonic() < deadline:
        reports = sorted(directory.glob(f"*{suffix}"))
        now = reports[0].stat().st_size if reports else 0
        if now and now == size:
            return
        size = now
        time.sleep(POLL_S)
    raise UnfitError(f"no *{suffix} was written within {written_s:.0f} s", next=f"read {target.log}")
