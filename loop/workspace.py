"""A workspace: the directory with `loop.toml`, and the settings in it."""

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat

from loop import launch
from loop.errors import InputError
from loop.record import Record, read_toml

MARKER = "loop.toml"


class EngineSettings(Record):
    """`[engine]`: which serving system, and the Python that has it."""

    name: str = "sglang"
    """The engine plugin."""
    python: str | None = None
    """The interpreter that runs the server; default `LOOP_PYTHON`, else the one that runs `loop`."""
    start_timeout_s: float = 900.0
    """A server that is not ready by then did not start."""


class ModelSettings(Record):
    """`[model]`: what is served unless `--model` says otherwise."""

    path: str | None = None
    """A checkpoint directory, relative to the workspace or absolute."""


class DeviceSettings(Record):
    """`[device."NAME"]`: what differs on one device."""

    original: str = "original"
    """The bundle that is served and compared against while nothing is shipped."""
    sigma_prior_pct: float = 1.0
    """Session-to-session noise believed before any A/A history exists (standard deviation)."""
    memory_bandwidth_gb_per_s: PositiveFloat | None = None
    """At best; where it is left out, as `loop/devices.toml` has it. This and the next bound what can be believed."""
    bf16_tflops: PositiveFloat | None = None
    """Dense, at 16 bits."""
    fp8_tflops: PositiveFloat | None = None
    """Dense, at 8 bits."""
    fp4_tflops: PositiveFloat | None = None
    """Dense, at 4 bits."""
    memory_gb: PositiveFloat | None = None
    """10⁹ bytes."""


class Settings(Record):
    """`loop.toml`."""

    schema_: Literal["loop.workspace/1"] = Field(alias="schema")
    engine: EngineSettings = EngineSettings()
    model: ModelSettings = ModelSettings()
    suite: str = "quadrants"
    """The suite of commands that are given none."""
    device: dict[str, DeviceSettings] = {}


class Workspace(Record):
    """A directory with `loop.toml`, its settings, and where everything in it lives."""

    root: Path
    settings: Settings

    @property
    def candidates(self) -> Path:
        """One directory per bundle."""
        return self.root / "candidates"

    @property
    def workloads(self) -> Path:
        """One directory per suite."""
        return self.root / "workloads"

    @property
    def ledger(self) -> Path:
        """Rounds, chain and raw data."""
        return self.root / "ledger"

    @property
    def reports(self) -> Path:
        """Reports for people."""
        return self.root / "reports"

    @property
    def launcher(self) -> Path:
        """The one way a server starts."""
        return self.root / "launch_server.sh"

    def on(self, device: str) -> DeviceSettings:
        """The settings for `device`."""
        return self.settings.device.get(device, DeviceSettings())

    def engine_python(self) -> str:
        """The interpreter that runs servers, resolved against the workspace; may be another environment's."""
        configured = self.settings.engine.python or os.environ.get("LOOP_PYTHON") or sys.executable
        expanded = Path(configured).expanduser()
        return str(expanded if expanded.is_absolute() or "/" not in configured else self.root / expanded)

    def model_path(self, override: str | None) -> Path:
        """The checkpoint directory to serve; raises InputError when there is none."""
        chosen = override or os.environ.get("MODEL_PATH") or self.settings.model.path
        if not chosen:
            raise InputError(
                f"no model: neither --model, MODEL_PATH nor [model] path in {self.root / MARKER} names one",
                next="pass --model DIR or set [model] path; `loop init --synthetic tiny` makes a small one",
            )
        path = Path(chosen).expanduser()
        if not override and not path.is_absolute():
            path = self.root / path
        if not (path / "config.json").is_file():
            raise InputError(
                f"{path} is not a model directory: it has no config.json",
                next="pass --model DIR; `loop init --synthetic tiny` makes a small one in models/tiny",
            )
        return path.resolve()


def find_workspace(start: Path | None = None) -> Workspace:
    """The workspace at or above `start` (default: the working directory). Raises InputError."""
    here = (start or Path.cwd()).resolve()
    for directory in (here, *here.parents):
        if (directory / MARKER).is_file():
            return Workspace(root=directory, settings=read_toml(directory / MARKER, Settings, InputError))
    raise InputError(f"no {MARKER} in {here} or above it", next="`loop init DIR` makes a workspace")


def current_device() -> str:
    """The device that production would find here."""
    return launch.find_device(dict(os.environ))
