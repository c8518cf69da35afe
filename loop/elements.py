"""The code in a bundle as `bundle.toml` declares it: patches, overlays, plugins, and what proves that they ran."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from loop.record import Record

SHA256 = r"^[0-9a-f]{64}$"


def _is_inside(text: str) -> str:
    """Relative, with forward slashes, and never upwards: what a bundle names lies in it."""
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or "\\" in text or str(path) != text:
        raise ValueError(f"{text!r} is not a plain relative path")
    return text


def _is_module(text: str) -> str:
    if not text.isidentifier():
        raise ValueError(f"{text!r} is not a module's name")
    return text


InsidePath = Annotated[str, AfterValidator(_is_inside)]
Identifier = Annotated[str, AfterValidator(_is_module)]
Sha256 = Annotated[str, Field(pattern=SHA256)]


class Patch(Record):
    """`[[patch]]`: a unified diff against an installed package."""

    package: Identifier
    """As it is imported: `sglang`."""
    file: InsidePath
    """The diff, in the bundle's directory. Paths in it may have git's `a/` and `b/`, and start below the package."""
    pre_sha256: dict[InsidePath, Sha256]
    """File → what it must hash to as installed, for every file that the diff changes."""


class Overlay(Record):
    """`[[overlay]]`: a whole file of an installed package, replaced or added."""

    package: Identifier
    path: InsidePath
    """Below the package."""
    file: InsidePath
    """In the bundle's directory."""
    pre_sha256: Sha256 | None = None
    """What the installed file must hash to; without it there must be none."""


class Plugin(Record):
    """`[[plugin]]`: a module that every server process loads at its start."""

    module: Identifier
    """The name it gets, free in the server's Python."""
    file: InsidePath
    """In the bundle's directory."""
    entry: Identifier = "activate"
    """The function in it that is called, without arguments."""


class Engaged(Record):
    """`[[engaged]]`: proof that the change ran; without it the verdict is `no_effect`."""

    kind: Literal["log_regex", "server_info", "receipt"]
    """Where to look: the server's log, its `/server_info`, what its plugins wrote with `loop_witness.fired`."""
    pattern: str = Field(min_length=1)
    """A regular expression; for `server_info` it is searched in `name=value` of each resolved setting."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise ValueError(f"{pattern!r} is not a regular expression: {problem}") from None
        return pattern

    def __str__(self) -> str:
        return f"{self.kind} {self.pattern!r}"
