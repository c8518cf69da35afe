"""Shipped: the bundle production serves now on each device, and the round that proved it."""

import json
from typing import Literal

from pydantic import Field

from loop.durable import write_atomically
from loop.errors import InputError, LoopError
from loop.record import Record, parse
from loop.workspace import Workspace

POINTER = "shipped.json"


class Entry(Record):
    """What one device serves."""

    bundle: str
    sha256: str
    directory: str
    """Relative to the workspace; holds `effective.json`. Named by content, never written twice."""
    round: str
    """The round that won."""
    confirmation: str
    """The fresh round that confirmed the win; its numbers are the headline."""
    since_utc: str

    def __str__(self) -> str:
        return f"{self.bundle} {self.sha256[:16]}, won in {self.round}, confirmed by {self.confirmation}"


class Shipped(Record):
    """`candidates/shipped.json`."""

    schema_: Literal["loop.shipped/1"] = Field(default="loop.shipped/1", alias="schema")
    devices: dict[str, Entry] = {}
    history: dict[str, tuple[Entry, ...]] = {}
    """Device → what was shipped before, oldest first."""
    originals: dict[str, str] = {}
    """Device → the bundle it serves while nothing is shipped, where that is not `original`."""


def read(workspace: Workspace) -> Shipped:
    """The pointer, or an empty one."""
    path = workspace.candidates / POINTER
    if not path.exists():
        return Shipped()
    try:
        document = json.loads(path.read_bytes())
    except ValueError as problem:
        raise InputError(f"{path} is not JSON: {problem}", next="restore it from git") from None
    return parse(document, Shipped, InputError, where=str(path))


def write(workspace: Workspace, pointer: Shipped) -> None:
    """Replace the pointer atomically; raises LoopError if it cannot be written, with production unchanged."""
    path = workspace.candidates / POINTER
    try:
        write_atomically(path, json.dumps(pointer.document(), indent=2, sort_keys=True).encode() + b"\n")
    except OSError as problem:
        raise LoopError(f"{path} cannot be written: {problem}; production is unchanged") from None
