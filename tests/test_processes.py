"""Who uses the processor: real processes that spin, read from the real /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from loop.host import MARK
from loop.processes import Meter, read_processes
from tests.beside import SPIN, beside, use_cpu

PYTHON = sys.executable


def meter_of_all(mark: str | None = None) -> Meter:
    """A meter that names every process: on a crowded machine the ones of these tests may get little."""
    return Meter(mark, num_named=10_000, min_named_cores=1e-6)


def test_a_busy_process_beside_is_named() -> None:
    """Its share of the time between two readings, and it is in the sum of all others."""
    with beside(PYTHON, "-S", "-c", SPIN) as busy:
        meter = meter_of_all()
        meter.read()
        use_cpu(busy, 0.6)
        meter.read()
        share = meter.share()

    assert share is not None
    named = {process.pid: process for process in share.busiest}
    assert busy.pid in named
    assert named[busy.pid].name.startswith("python")
    assert 0 < named[busy.pid].cores <= 1.1
    assert share.other_cores >= named[busy.pid].cores / 2


def test_what_this_process_starts_is_its_own() -> None:
    """Also a grandchild: a server's workers are."""
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {SPIN!r}])"
    with subprocess.Popen([PYTHON, "-S", "-c", nested]) as child:
        try:
            process = psutil.Process(child.pid)
            while not process.children():
                psutil.wait_procs([process], timeout=0.02)
            (grandchild,) = process.children()
            meter = meter_of_all()
            meter.read()
            use_cpu(grandchild, 0.3)
            meter.read()
            share = meter.share()
        finally:
            for one in (*psutil.Process(child.pid).children(), psutil.Process(child.pid)):
                one.kill()

    assert share is not None
    assert {os.getpid(), child.pid, grandchild.pid} <= meter.own_pids
    assert grandchild.pid not in {process.pid for process in share.busiest}


def test_a_marked_process_is_our_own_wherever_it_went() -> None:
    """One that detached itself from its server; the mark of another session does not count."""
    with (
        beside(PYTHON, "-S", "-c", SPIN, environ={MARK: "Rtest-9/B"}) as ours,
        beside(PYTHON, "-S", "-c", SPIN, environ={MARK: "Rtest-9/A1"}) as theirs,
    ):
        while MARK not in ours.environ() or MARK not in theirs.environ():
            psutil.wait_procs([ours], timeout=0.02)
        meter = meter_of_all("Rtest-9/B")
        meter.read()
        use_cpu(theirs, 0.2)
        meter.read()
        share = meter.share()

    assert share is not None
    assert ours.pid in meter.own_pids
    assert theirs.pid not in meter.own_pids
    assert theirs.pid in {process.pid for process in share.busiest}
    assert ours.pid not in {process.pid for process in share.busiest}


def test_a_process_that_came_later_has_used_all_its_time_since() -> None:
    """It was not there at the first reading."""
    meter = meter_of_all()
    meter.read()
    with beside(PYTHON, "-S", "-c", SPIN) as busy:
        use_cpu(busy, 0.3)
        meter.read()
    meter.read()  # it has ended by now: what was seen of it stays
    share = meter.share()

    assert share is not None
    assert busy.pid in {process.pid for process in share.busiest}


def test_one_reading_says_nothing() -> None:
    """A share is a difference."""
    meter = meter_of_all()
    assert None is meter.share()

    meter.read()

    assert None is meter.share()


def test_a_name_may_hold_what_the_format_uses(tmp_path: Path) -> None:
    """The kernel writes it between parentheses and escapes nothing."""
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "60"]) as process:
        try:
            deadline = time.monotonic() + 10
            sighting = None
            while (sighting is None or sighting.name != odd.name) and time.monotonic() < deadline:
                sighting = next((seen for (pid, _), seen in read_processes().items() if pid == process.pid), None)
        finally:
            process.kill()

    assert sighting is not None
    assert (odd.name, os.getpid()) == (sighting.name, sighting.parent)
