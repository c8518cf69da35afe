"""The GPUs that a server may use, as the driver reports them now: through NVML, where `pynvml` is installed."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from loop.record import Record

REASONS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clock event reasons (nvml.h, `nvmlClocksEventReason*`)."""
CLOCK_SM, TEMPERATURE_GPU = 1, 0
"""NVML's `NVML_CLOCK_SM` and `NVML_TEMPERATURE_GPU`."""
IDLE = "gpu_idle"
HARMLESS = frozenset({IDLE, "applications_clocks_setting"})
"""Reasons for a clock below the maximum that are somebody's wish."""


class GpuReading(Record):
    """One GPU at one instant. What the driver does not say is None."""

    index: int
    """NVML's: in the order of the PCI bus."""
    name: str
    uuid: str
    sm_clock_mhz: float | None
    max_sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    memory_used_bytes: int | None
    memory_free_bytes: int | None
    reasons: tuple[str, ...] | None
    """Why its clocks are below the maximum."""
    processes: dict[int, int | None]
    """Process id → bytes of GPU memory. Inside a container the driver may show none, or ids of the host."""


class Gpus:
    """A context manager over NVML. Without `pynvml`, a driver or a GPU it reads nothing."""

    def __init__(self, environ: Mapping[str, str], nvml: Any = None) -> None:
        self._environ = environ
        self._nvml = nvml if nvml is not None else load_nvml()
        self._handles: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._nvml is None:
            return self
        try:
            self._nvml.nvmlInit()
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError:
            self._nvml = None
            return self
        uuids = [_text(self._nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        self._handles = {index: handles[index] for index in choose(uuids, self._environ)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask("nvmlShutdown")
        self._handles = {}

    @property
    def answering(self) -> bool:
        """Whether the driver can be asked at all."""
        return self._nvml is not None

    def read(self) -> tuple[GpuReading, ...]:
        """Every chosen GPU, now: about a millisecond each."""
        return tuple(self._read(index, handle) for index, handle in self._handles.items())

    def cuda_version(self) -> tuple[int, int] | None:
        """The newest CUDA that the driver runs: (major, minor)."""
        number = self._ask("nvmlSystemGetCudaDriverVersion")
        return None if number is None else (number // 1000, number % 1000 // 10)

    def _read(self, index: int, handle: Any) -> GpuReading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        power_mw = self._ask("nvmlDeviceGetPowerUsage", handle)
        running = [
            *(self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()),
            *(self._ask("nvmlDeviceGetGraphicsRunningProcesses", handle) or ()),
        ]
        return GpuReading(
            index=index,
            name=_text(self._ask("nvmlDeviceGetName", handle) or "?"),
            uuid=_text(self._ask("nvmlDeviceGetUUID", handle) or "?"),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU),
            memory_used_bytes=memory and memory.used,
            memory_free_bytes=memory and memory.free,
            reasons=None if reasons is None else tuple(name for bit, name in REASONS.items() if reasons & bit),
            processes={process.pid: process.usedGpuMemory for process in running},
        )

    def _ask(self, question: str, *arguments: Any) -> Any:
        """The answer to one of NVML's functions, or None where this library, driver or GPU has none."""
        function = getattr(self._nvml, question, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def choose(uuids: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, by index; all without it.

    As CUDA reads it: indexes or the beginning of UUIDs, and whatever follows one that names no GPU is ignored. An index
    counts in the order of the PCI bus here, which is CUDA's own order where all GPUs are alike.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for item in map(str.strip, listed.split(",")):
        named = [
            i for i, uuid in enumerate(uuids) if (item.startswith("GPU-") and uuid.startswith(item)) or item == str(i)
        ]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def load_nvml() -> Any:
    """The module `pynvml` (nvidia-ml-py, which SGLang brings), or None."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:
    """Old releases of nvidia-ml-py answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
