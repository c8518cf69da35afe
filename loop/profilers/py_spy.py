"""py-spy: samples the Python stacks of scheduler, tokenizer and detokenizer, from outside and without their help."""

import contextlib
import csv
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple

import psutil

from loop.errors import UnfitError
from loop.profilers import Profiler, Target, find_program, processes_of
from loop.stacks import FunctionRow, draw_flames, rank_functions, read_stacks

INSTALL = "`pip install py-spy` into the environment of loop, or put py-spy on PATH"
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
ROLES = ("scheduler", "detokenizer", "tokenizer")
"""As SGLang's processes call themselves; the one that was launched is the tokenizer."""


class Sampler(NamedTuple):
    """One py-spy at one process."""

    role: str
    process: subprocess.Popen[bytes]
    folded: Path
    log: Path


class PySpy(Profiler):
    """Per process: folded stacks, a flame graph (SVG), and functions by self and total share (CSV)."""

    name: ClassVar[str] = "py_spy"

    rate_hz: int = 100
    stop_s: float = 30.0
    """To write its result after it was asked to."""

    def check(self, target: Target) -> None:
        """It must be there, and the kernel must let it look."""
        if find_program("py-spy", target) is None:
            raise UnfitError("py-spy is not installed", next=INSTALL)
        scope = PTRACE_SCOPE.read_text().strip() if PTRACE_SCOPE.exists() else "0"
        if scope != "0" and os.geteuid() != 0:
            raise UnfitError(
                f"the kernel lets py-spy look at its own children only ({PTRACE_SCOPE} is {scope})",
                next="run as root, or `echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope`; "
                "in a container give it --cap-add SYS_PTRACE",
            )

    @contextmanager
    def watch(self, target: Target, load: str, directory: Path) -> Iterator[None]:
        """Sample every role's process. Rank 0 stands for all schedulers."""
        program = find_program("py-spy", target)
        assert program is not None
        samplers = [self._start(program, role, pid, directory) for role, pid in find_roles(target)]
        try:
            yield
        finally:
            for sampler in samplers:
                sampler.process.send_signal(signal.SIGINT)
            for sampler in samplers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    sampler.process.wait(self.stop_s)
                sampler.process.kill()
                sampler.process.wait()
        written = [sampler for sampler in samplers if self._write(sampler, directory)]
        if not written:
            said = (
                samplers[0].log.read_text(errors="replace").strip().splitlines() if samplers else ["no process of it"]
            )
            raise UnfitError(f"py-spy saw nothing: {said[-1] if said else 'it said nothing'}", next=INSTALL)

    def _start(self, program: str, role: str, pid: int, directory: Path) -> Sampler:
        folded, log = directory / f"{role}.folded", directory / f"{role}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *(program, "record", "--pid", str(pid), "--rate", str(self.rate_hz)),
                    *("--format", "raw", "--function", "--output", str(folded)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Sampler(role, process, folded, log)

    def _write(self, sampler: Sampler, directory: Path) -> bool:
        """The table and the picture; False if nothing was sampled, as of a process that only waits."""
        stacks = read_stacks(sampler.folded.read_text(errors="replace")) if sampler.folded.exists() else None
        if not stacks:
            return False
        write_functions(directory / f"{sampler.role}.functions.csv", rank_functions(stacks))
        (directory / f"{sampler.role}.svg").write_text(draw_flames(stacks, f"sglang {sampler.role}"))
        return True


def find_roles(target: Target) -> list[tuple[str, int]]:
    """(role, process id) of what is worth sampling: one process of each role."""
    found = {"tokenizer": target.pid}
    for process in sorted(processes_of(target), key=lambda process: process.pid):
        role = role_of(_command(process))
        if role is not None:
            found.setdefault(role, process.pid)
    return sorted(found.items())


def role_of(command: Sequence[str]) -> str | None:
    """`scheduler`, `detokenizer`, or None: by the title that SGLang gives its processes, `sglang::scheduler_TP0`."""
    title = " ".join(command)
    return next((role for role in ROLES if f"sglang::{role}" in title), None)


def write_functions(path: Path, rows: Sequence[FunctionRow]) -> None:
    """As CSV, the names of its fields first."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(FunctionRow.model_fields))
        writer.writeheader()
        writer.writerows(row.document() for row in rows)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
