"""Processes beside the tests: no descendants of theirs, as somebody else's would be."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil

from loop.orphans import PR_SET_CHILD_SUBREAPER

PR_GET_CHILD_SUBREAPER = 37
SPIN = "while True: pass"
# The parent starts a child in a session of its own, says its pid, and ends: the child is nobody's descendant then.
DETACH = """
import subprocess, sys
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
child = subprocess.Popen(sys.argv[1:], start_new_session=True, **quiet)
print(child.pid)
child.returncode = 0
"""


@contextmanager
def beside(*command: str, environ: Mapping[str, str] | None = None) -> Iterator[psutil.Process]:
    """A process of somebody else, which lives inside."""
    with _adopting_nothing():
        done = subprocess.run(
            [sys.executable, "-S", "-c", DETACH, *command],
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            check=True,
        )
    process = psutil.Process(int(done.stdout))
    try:
        yield process
    finally:
        process.kill()
        psutil.wait_procs([process], timeout=10)


@contextmanager
def _adopting_nothing() -> Iterator[None]:
    """An earlier test may have started a server in this process, which adopts orphans from then on."""
    prctl = ctypes.CDLL(None).prctl
    adopting = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopting), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, adopting.value, 0, 0, 0)


def use_cpu(process: psutil.Process, seconds: float) -> None:
    """Wait until it has used this much processor time from now on."""
    times = process.cpu_times()
    goal = times.user + times.system + seconds
    while times.user + times.system < goal:
        psutil.wait_procs([process], timeout=0.02)
        times = process.cpu_times()
