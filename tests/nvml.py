"""A stand-in for the module `pynvml`: what the driver of a machine with GPUs would answer."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the driver says that it cannot answer."""


@dataclass
class Device:
    """One GPU. `silent` names functions that it does not support."""

    uuid: str = "GPU-0000"
    name: str | bytes = "NVIDIA H200"
    clock_mhz: int = 1980
    power_mw: int = 350_000
    temperature_c: int = 40
    used: int = 1 << 30
    reasons: int = 0
    compute: dict[int, int | None] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


class Nvml:
    """The functions that `loop` asks, over these devices; `driver` False is a machine without one."""

    NVMLError = NVMLError

    def __init__(self, *devices: Device, driver: bool = True, cuda: int = 13000) -> None:
        self.devices = devices
        self.is_open = False
        self._driver = driver
        self._cuda = cuda

    def nvmlInit(self) -> None:  # noqa: N802
        """Open the driver."""
        if not self._driver:
            raise NVMLError("driver not loaded")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Close it."""
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many GPUs."""
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        """A GPU."""
        return self.devices[index]

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        """13000 is CUDA 13.0."""
        return self._cuda

    def __getattr__(self, question: str) -> Any:
        answers = {
            "nvmlDeviceGetUUID": lambda device: device.uuid,
            "nvmlDeviceGetName": lambda device: device.name,
            "nvmlDeviceGetClockInfo": lambda device, _: device.clock_mhz,
            "nvmlDeviceGetMaxClockInfo": lambda _, __: 1980,
            "nvmlDeviceGetPowerUsage": lambda device: device.power_mw,
            "nvmlDeviceGetTemperature": lambda device, _: device.temperature_c,
            "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=device.used, free=(141 << 30) - device.used),
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda device: device.reasons,
            "nvmlDeviceGetComputeRunningProcesses": lambda device: [
                SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in device.compute.items()
            ],
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
        }
        if question not in answers:
            raise AttributeError(question)

        def ask(device: Device, *arguments: Any) -> Any:
            if question in device.silent:
                raise NVMLError("not supported")
            return answers[question](device, *arguments)  # type: ignore[no-untyped-call]

        return ask
