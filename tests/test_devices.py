"""Devices: a table with sources, and a workspace that may know better."""

import tomllib

import pytest

from loop.devices import TABLE, find_peaks
from loop.workspace import DeviceSettings

NAMES = sorted(tomllib.loads(TABLE.read_text(encoding="utf-8")))
UNKNOWN = DeviceSettings()


@pytest.mark.parametrize("name", NAMES)
def test_every_device_of_the_table_has_what_bounds_need(name: str) -> None:
    """With who says so, and in units that are no typing mistake."""
    peaks = find_peaks(name, UNKNOWN)

    assert peaks is not None
    assert peaks.source
    assert 100 <= (peaks.memory_bandwidth_gb_per_s or 0) <= 20_000
    assert 50 <= (peaks.bf16_tflops or 0) <= 10_000
    assert 16 <= (peaks.memory_gb or 0) <= 400
    assert (peaks.tflops(32) or 0) == (peaks.tflops(16) or 0) < (peaks.tflops(8) or 0) <= (peaks.tflops(4) or 0)


def test_the_usual_devices_are_there() -> None:
    """By the names that their drivers give them."""
    usual = {"NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA B200"}

    assert usual | {"NVIDIA GeForce RTX 4090", "AMD Instinct MI300X"} <= set(NAMES)


def test_a_device_that_nobody_knows_has_no_peaks() -> None:
    """A processor, for one."""
    assert find_peaks("cpu", UNKNOWN) is None


def test_the_workspace_knows_better() -> None:
    """Number by number, and it is said that it was it."""
    own = DeviceSettings(memory_bandwidth_gb_per_s=4000.0)

    known, new = find_peaks("NVIDIA H200", own), find_peaks("cpu", own)

    assert known is not None
    assert new is not None
    assert (4000.0, 989.5) == (known.memory_bandwidth_gb_per_s, known.bf16_tflops)
    assert (4000.0, None, None) == (new.memory_bandwidth_gb_per_s, new.bf16_tflops, new.tflops(16))
    assert known.source.startswith("loop.toml, https://")
    assert "loop.toml" == new.source
