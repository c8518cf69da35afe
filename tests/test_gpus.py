"""What the driver says about GPUs, and which of them a server may use."""

import pytest

from loop.gpus import Gpus, choose
from tests.nvml import Device, Nvml

UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3"]


def test_without_a_driver_there_is_nothing_to_read() -> None:
    """The library may be installed where no GPU is."""
    with Gpus({}, Nvml(driver=False)) as gpus:
        assert () == gpus.read()
        assert None is gpus.cuda_version()
        assert not gpus.answering


def test_without_the_library_or_a_gpu_this_very_machine_reads_nothing_and_does_not_fail() -> None:
    """Or reads what it has: the test runs on both kinds of machine."""
    with Gpus({"CUDA_VISIBLE_DEVICES": ""}) as gpus:
        assert () == gpus.read()


def test_a_reading_has_units() -> None:
    """Milliwatts are watts, bits are names, bytes are text."""
    device = Device(uuid="GPU-x", name=b"NVIDIA H200", reasons=0x4 | 0x40, compute={7: 3 << 30})

    with Gpus({}, Nvml(device)) as gpus:
        (reading,) = gpus.read()

    assert ("NVIDIA H200", "GPU-x", 0) == (reading.name, reading.uuid, reading.index)
    assert (1980, 1980, 350.0, 40) == (
        reading.sm_clock_mhz,
        reading.max_sm_clock_mhz,
        reading.power_w,
        reading.temperature_c,
    )
    assert ("sw_power_cap", "hw_thermal_slowdown") == reading.reasons
    assert {7: 3 << 30} == reading.processes
    assert (1 << 30, 140 << 30) == (reading.memory_used_bytes, reading.memory_free_bytes)


def test_what_a_gpu_does_not_say_is_missing_and_not_zero() -> None:
    """A virtual GPU may know neither power nor reasons."""
    silent = {"PowerUsage", "CurrentClocksThrottleReasons", "MemoryInfo", "ClockInfo", "ComputeRunningProcesses"}
    device = Device(silent=frozenset(f"nvmlDeviceGet{name}" for name in silent))

    with Gpus({}, Nvml(device)) as gpus:
        (reading,) = gpus.read()

    assert (None, None, None, None) == (
        reading.power_w,
        reading.reasons,
        reading.memory_used_bytes,
        reading.sm_clock_mhz,
    )
    assert {} == reading.processes


def test_a_library_without_a_function_is_asked_the_rest() -> None:
    """Old and new releases of nvidia-ml-py differ."""

    class Old(Nvml):
        def __getattr__(self, question: str) -> object:
            if question == "nvmlDeviceGetTemperature":
                raise AttributeError(question)
            return super().__getattr__(question)

    with Gpus({}, Old(Device())) as gpus:
        (reading,) = gpus.read()

    assert (None, 1980) == (reading.temperature_c, reading.sm_clock_mhz)


def test_the_driver_is_closed_again() -> None:
    """Whatever happened inside."""
    nvml = Nvml(Device(), cuda=12080)

    with Gpus({}, nvml) as gpus:
        assert (12, 8) == gpus.cuda_version()
        assert nvml.is_open

    assert not nvml.is_open


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("GPU-bbbb-2", [1]),
        ("GPU-c,0", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-", []),
        ("MIG-aaaa", []),
    ],
)
def test_cuda_visible_devices_chooses(listed: str | None, expected: list[int]) -> None:
    """As CUDA reads it: what follows a name of no GPU, or of several, is ignored."""
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}

    assert expected == choose(UUIDS, environ)


def test_only_the_chosen_ones_are_read() -> None:
    """Under their own indexes."""
    devices = [Device(uuid=uuid) for uuid in UUIDS]

    with Gpus({"CUDA_VISIBLE_DEVICES": "2"}, Nvml(*devices)) as gpus:
        assert [(2, "GPU-cccc-3")] == [(reading.index, reading.uuid) for reading in gpus.read()]
