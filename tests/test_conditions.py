"""What the machine was like around a session: readings of the real machine, and of GPUs that a stand-in has."""

import os
import sys
import threading
from pathlib import Path

import pytest

from loop.conditions import GpuConditions, Observer, Spread
from loop.host import MARK
from loop.ledger import Round
from loop.workspace import Workspace
from tests.beside import SPIN, beside, use_cpu
from tests.nvml import Device, Nvml

NOBODY = 4_000_000_000
"""No process can have this id."""


def observed(nvml: Nvml, *, readings: int = 0) -> GpuConditions:
    """The only GPU's conditions over a session whose timed part had `readings` more readings than its two ends."""
    with Observer("Rtest/A1", {}, nvml) as observer:
        observer.start()
        for _ in range(readings):
            observer._read()
        observer.stop()
    assert observer.conditions is not None
    (gpu,) = observer.conditions.gpus
    return gpu


def test_the_machine_is_read_before_during_and_after() -> None:
    """Load, memory and who else used the CPUs."""
    with beside(sys.executable, "-S", "-c", SPIN) as busy:
        with Observer("Rtest/A1", {}, Nvml(driver=False)) as observer:
            observer.start()
            use_cpu(busy, 1.2)  # long enough for the thread to read once on its own
            observer.stop()
        conditions = observer.conditions

    assert conditions is not None
    assert conditions.cpu is not None
    assert conditions.cpu.other_cores > 0
    assert conditions.num_readings >= 3
    assert conditions.free_memory_low_bytes is not None
    assert 0 < conditions.free_memory_low_bytes <= 2 * conditions.free_memory_before_bytes
    assert conditions.load_after >= 0
    assert () == conditions.gpus


def test_a_session_without_a_timed_part_says_what_it_can() -> None:
    """It crashed, or its candidate was refused."""
    with Observer("Rtest/A1", {}, Nvml(Device())) as observer:
        observer.stop()

    conditions = observer.conditions
    assert conditions is not None
    assert (0, None, None) == (conditions.num_readings, conditions.cpu, conditions.free_memory_low_bytes)
    (gpu,) = conditions.gpus
    assert (None, {}, 1 << 30) == (gpu.sm_clock_mhz, gpu.limited_pct, gpu.memory_before_bytes)


def test_an_exception_leaves_no_thread_and_no_open_driver() -> None:
    """Ctrl-C in the timed part."""
    nvml = Nvml(Device())
    observer = Observer("Rtest/A1", {}, nvml)

    def interrupted() -> None:
        with observer:
            observer.start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert "observer" not in {thread.name for thread in threading.enumerate()}
    assert not nvml.is_open
    assert observer.conditions is not None


def test_clocks_are_those_of_a_gpu_at_work() -> None:
    """A clock at rest says nothing about one under load."""
    device = Device(clock_mhz=345, reasons=0x1)
    with Observer("Rtest/A1", {}, Nvml(device)) as observer:
        observer.start()
        for clock_mhz, power_mw in ((1980, 600_000), (1900, 690_000), (1965, 650_000)):
            device.clock_mhz, device.power_mw, device.reasons = clock_mhz, power_mw, 0x4
            observer._read()
        device.clock_mhz, device.power_mw, device.reasons = 345, 350_000, 0x1
        observer.stop()
    assert observer.conditions is not None
    (gpu,) = observer.conditions.gpus

    assert Spread(low=1900, median=1965, high=1980) == gpu.sm_clock_mhz
    assert Spread(low=350, median=600, high=690) == gpu.power_w
    assert {"gpu_idle": 40.0, "sw_power_cap": 60.0} == gpu.limited_pct


def test_memory_that_a_server_keeps_shows() -> None:
    """Used before it started, and after it was gone."""
    device = Device(used=1 << 30)
    with Observer("Rtest/A1", {}, Nvml(device)) as observer:
        observer.start()
        device.used = 100 << 30
        observer.stop()
        device.used = 2 << 30
    assert observer.conditions is not None
    (gpu,) = observer.conditions.gpus

    assert (1 << 30, 2 << 30) == (gpu.memory_before_bytes, gpu.memory_after_bytes)


def test_somebody_elses_process_on_the_gpu_is_named() -> None:
    """One that can be seen here; our own are not it."""
    with beside(sys.executable, "-S", "-c", SPIN) as stranger:
        gpu = observed(Nvml(Device(compute={os.getpid(): 1 << 30, stranger.pid: 3 << 30})), readings=1)
        before = Nvml(Device(compute={}))
        with Observer("Rtest/A1", {}, before) as observer:
            observer.start()
            before.devices[0].compute[stranger.pid] = None
            observer.stop()
    assert observer.conditions is not None

    assert stranger.pid in {process.pid for process in gpu.others}
    assert {process.name for process in gpu.others if process.pid == stranger.pid} == {
        process.name for process in observer.conditions.gpus[0].others
    }
    assert [(stranger.pid, None)] == [(p.pid, p.memory_bytes) for p in observer.conditions.gpus[0].others]


def test_a_number_that_means_nothing_here_is_a_stranger_only_before_the_server_starts() -> None:
    """Inside a container the driver may number processes as the host does: later it may be our own server."""
    assert [(NOBODY, None)] == [(p.pid, p.name) for p in observed(Nvml(Device(compute={NOBODY: 5}))).others]

    late = Nvml(Device())
    with Observer("Rtest/A1", {}, late) as observer:
        observer.start()
        late.devices[0].compute[NOBODY] = 5
        observer.stop()
    assert observer.conditions is not None
    assert () == observer.conditions.gpus[0].others


def test_a_process_with_the_sessions_mark_is_its_own_on_the_gpu_too() -> None:
    """A worker that detached itself."""
    nvml = Nvml(Device())
    with (
        beside(sys.executable, "-S", "-c", SPIN, environ={MARK: "Rtest/A1"}) as worker,
        Observer("Rtest/A1", {}, nvml) as observer,
    ):
        use_cpu(worker, 0.05)  # it runs, so it has its environment
        observer.start()
        nvml.devices[0].compute[worker.pid] = 1 << 30
        observer.stop()
    assert observer.conditions is not None

    assert () == observer.conditions.gpus[0].others


@pytest.mark.xdist_group("noop")
def test_every_session_of_a_round_has_its_conditions(noop: tuple[Workspace, Round]) -> None:
    """Read while it was timed."""
    for session in noop[1].sessions:
        assert session.conditions is not None
        assert session.conditions.num_readings >= 2
        assert session.conditions.cpu is not None
        assert session.conditions.cpu.elapsed_s > 0


def test_the_memory_of_a_dead_server_is_awaited() -> None:
    """The driver gives it back a moment after the process is gone."""
    device = Device(used=1 << 30)
    with Observer("Rtest/A1", {}, Nvml(device), grace_s=5) as observer:
        device.used = 90 << 30
        free = threading.Timer(0.2, lambda: setattr(device, "used", 1 << 30))
        free.start()
    free.join()

    assert observer.conditions is not None
    (gpu,) = observer.conditions.gpus
    assert 1 << 30 == gpu.memory_after_bytes
    assert gpu.memory_back_s is not None
    assert 0.1 < gpu.memory_back_s < 5


def test_memory_that_never_comes_back_is_recorded() -> None:
    """Somebody else holds it, or an orphan that nobody found."""
    device = Device(used=1 << 30)
    with Observer("Rtest/A1", {}, Nvml(device), grace_s=0.2) as observer:
        device.used = 90 << 30

    assert observer.conditions is not None
    (gpu,) = observer.conditions.gpus
    assert (90 << 30, None) == (gpu.memory_after_bytes, gpu.memory_back_s)


def test_what_is_compiled_in_the_timed_part_is_counted(tmp_path: Path) -> None:
    """Before it, compiling is what a warm-up is for."""
    with Observer("Rtest/A1", {"TRITON_CACHE_DIR": str(tmp_path)}, Nvml(driver=False)) as observer:
        (tmp_path / "warm.cubin").write_text("x")
        os.utime(tmp_path / "warm.cubin", (1, 1))
        observer.start()
        (tmp_path / "late.cubin").write_text("x")
        observer.stop()

    assert observer.conditions is not None
    assert 1 == observer.conditions.num_compiled_files
