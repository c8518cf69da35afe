"""A check: one thing that must be right before a measurement can be believed. One file each; its stem is its name."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from loop.engines import Engine
from loop.gpus import Gpus
from loop.host import Host, read_host
from loop.installation import Installation, read_installation
from loop.ledger import Ledger
from loop.plan import load_engine
from loop.record import Record
from loop.suites import LoadedSuite, load_suite
from loop.workspace import Workspace

Status = Literal["ok", "warn", "unfit"]
Stage = Literal["software", "machine", "workspace", "rehearsal"]
STAGES: tuple[Stage, ...] = ("software", "machine", "workspace", "rehearsal")
"""In this order; what uses the machine most comes last."""


class Finding(Record):
    """What a check found, in one line."""

    check: str
    status: Status
    """`warn`: a measurement is possible, and weaker. `unfit`: it would fail, or say nothing."""
    text: str
    action: str = ""
    """The command or action that mends it."""


class Setup(Record):
    """What would be measured here: the workspace and what a person chose otherwise. Each part is loaded once.

    The parts raise LoopError where they are broken: the check that asked becomes a finding of it.
    """

    workspace: Workspace
    engine_name: str | None = None
    suite_id: str | None = None
    model_path: str | None = None
    nvml: Any = None
    """What the GPUs are asked through; None finds `pynvml`."""

    @cached_property
    def engine(self) -> Engine:
        """The engine, with the Python that has it."""
        return load_engine(self.workspace, self.engine_name)

    @cached_property
    def installation(self) -> Installation:
        """What the engine's Python has installed."""
        return read_installation(self.engine.python)

    @cached_property
    def suite(self) -> LoadedSuite:
        """The suite with its prompts proven."""
        return load_suite(self.workspace.workloads, self.suite_id or self.workspace.settings.suite)

    @cached_property
    def model(self) -> Path:
        """The checkpoint's directory."""
        return self.workspace.model_path(self.model_path)

    @cached_property
    def host(self) -> Host:
        """This machine."""
        return read_host()

    def open_gpus(self) -> Gpus:
        """The GPUs that CUDA_VISIBLE_DEVICES leaves, to be read inside a `with`."""
        return Gpus(os.environ, self.nvml)

    @property
    def ledger(self) -> Ledger:
        """The workspace's rounds."""
        return Ledger(self.workspace.ledger)


class Check(Record, ABC):
    """A check's fields are its thresholds."""

    stage: ClassVar[Stage]

    @property
    def name(self) -> str:
        """The module's stem."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def find(self, setup: Setup) -> Iterator[Finding]:
        """One finding or more; `ok` where there is nothing to mend. Changes nothing on this machine."""

    def ok(self, text: str) -> Finding:
        """As it should be."""
        return Finding(check=self.name, status="ok", text=text)

    def warn(self, text: str, action: str) -> Finding:
        """What weakens a measurement."""
        return Finding(check=self.name, status="warn", text=text, action=action)

    def unfit(self, text: str, action: str) -> Finding:
        """What forbids one."""
        return Finding(check=self.name, status="unfit", text=text, action=action)


def gib(num_bytes: float) -> str:
    """Bytes for people: `4.2 GiB`, `5.3 MiB`."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
