"""What a device can do at best: the table that ships, and what `loop.toml` says otherwise."""

import tomllib
from functools import cache
from pathlib import Path

from loop.record import Record
from loop.workspace import DeviceSettings

TABLE = Path(__file__).with_name("devices.toml")


class Peaks(Record):
    """One device at its best; dense numbers. What is not known is None, and bounds nothing."""

    memory_bandwidth_gb_per_s: float | None = None
    bf16_tflops: float | None = None
    """At 16 bits."""
    fp8_tflops: float | None = None
    """At 8 bits, integers too."""
    fp4_tflops: float | None = None
    memory_gb: float | None = None
    source: str
    """Who says so: a page, a paper, `loop.toml`."""

    def tflops(self, num_bits: int) -> float | None:
        """The most that weights of so many bits may be computed with."""
        known = {16: self.bf16_tflops, 8: self.fp8_tflops, 4: self.fp4_tflops}
        return max((value for bits, value in known.items() if value and bits >= min(num_bits, 16)), default=None)


def find_peaks(device: str, settings: DeviceSettings) -> Peaks | None:
    """Of `device`, the workspace's own numbers before the table's; None where neither knows it."""
    own = {name: value for name in Peaks.model_fields if (value := getattr(settings, name, None)) is not None}
    known = _table().get(device)
    if not own:
        return known
    sources = ["loop.toml", *([known.source] if known else [])]
    return Peaks.model_validate({**(dict(known) if known else {}), **own, "source": ", ".join(sources)})


@cache
def _table() -> dict[str, Peaks]:
    """Name as the driver gives it → peaks."""
    return {name: Peaks.model_validate(row) for name, row in tomllib.loads(TABLE.read_text(encoding="utf-8")).items()}
