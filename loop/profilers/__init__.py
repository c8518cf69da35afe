"""A profiler: one way to look into a running server. One file per profiler; its stem is its name, its fields settings.

A profiler slows what it looks at, so it never runs in a session that is timed.
"""

import shlex
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Literal

import psutil

from loop.errors import UnfitError
from loop.record import Record

LoadName = Literal["prefill", "decode", "traffic"]


class Target(Record):
    """A server that runs."""

    url: str
    python: str
    """The interpreter that it runs in."""
    pid: int
    """The one that was launched; it has the tokenizer and speaks HTTP."""
    log: Path
    num_ranks: int = 1
    """Schedulers, each with a GPU of its own."""
    has_gpu: bool = False


class Profiler(Record, ABC):
    """Used as `with profiler.profile(target, load, directory) as files:`; the files are known afterwards."""

    name: ClassVar[str]
    loads: ClassVar[tuple[LoadName, ...]] = ("traffic",)
    """Under which traffic it is worth its while."""
    is_alone: ClassVar[bool] = False
    """Whether it slows the server so much that no other profiler may look meanwhile."""

    @abstractmethod
    def check(self, target: Target) -> None:
        """Raise UnfitError, with what to do, if it cannot work here. Changes nothing."""

    @abstractmethod
    def watch(self, target: Target, load: LoadName, directory: Path) -> AbstractContextManager[None]:
        """Look while the context lasts; leave files in the empty `directory`. Raises UnfitError if that fails."""

    @contextmanager
    def profile(self, target: Target, load: LoadName, directory: Path) -> Iterator[list[Path]]:
        """Check first, then look while the context lasts. What is yielded is filled at its end."""
        self.check(target)
        directory.mkdir(parents=True, exist_ok=True)
        present = sorted(path.name for path in directory.iterdir())
        if present:
            raise UnfitError(
                f"{directory} holds {present[0]} already: what a profiler leaves there could be taken for it",
                next="give another --out directory, or move the old profile away",
            )
        files: list[Path] = []
        with self.watch(target, load, directory):
            yield files
        files += sorted(path for path in directory.rglob("*") if path.is_file())
        if not files:
            raise UnfitError(f"{self.name} left nothing in {directory}", next=f"read {target.log}")


class Wrapper(Profiler):
    """A profiler that cannot look into a server that runs: it must start it, and looks from then on."""

    @abstractmethod
    def command(self, target: Target, directory: Path) -> list[str]:
        """What to put before the server's own command, so that it leaves its report in `directory`."""

    def wrap(self, target: Target, directory: Path) -> Path:
        """An executable to start in place of the server's interpreter."""
        directory.mkdir(parents=True, exist_ok=True)
        script = directory.parent / f"{self.name}-python"
        script.write_text(f'#!/bin/sh\nexec {shlex.join([*self.command(target, directory), target.python])} "$@"\n')
        script.chmod(0o755)
        return script


def processes_of(target: Target) -> list[psutil.Process]:
    """The one that was launched and all below it, oldest first.

    By descent: the title that SGLang gives its schedulers is written over the environment that holds their mark.
    """
    try:
        launched = psutil.Process(target.pid)
        return [launched, *launched.children(recursive=True)]
    except psutil.Error:
        return []


def find_program(name: str, target: Target) -> str | None:
    """A program in the environment of `loop` or of the server, or on PATH."""
    places = [Path(sys.executable).parent, Path(target.python).parent]
    beside = [str(place / name) for place in places if (place / name).is_file()]
    return beside[0] if beside else shutil.which(name)
