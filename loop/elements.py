"""The elements of a code bundle: as its TOML declares them, and as its content keeps them, by hash."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from loop.record import Record

MODULE = re.compile(r"[a-z_][a-z0-9_]*")
RESERVED = ("loop_receipts", "loop_witness")
"""Modules that the launcher itself puts on the server's path."""


def plain_path(text: str) -> str:
    """A relative path that stays where it starts, in its one spelling; raises ValueError for another."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text or str(path) != text or text == ".":
        raise ValueError(f"{text!r} is not a plain path inside: no '..', no leading '/', no '.'")
    return text


def _module(text: str) -> str:
    if not MODULE.fullmatch(text) or text in RESERVED:
        raise ValueError(f"{text!r} cannot be a module's name: lower-case letters, digits and '_', and not loop's own")
    return text


def _identifier(text: str) -> str:
    if not text.isidentifier():
        raise ValueError(f"{text!r} is not an identifier")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"{text!r} is not a regular expression: {problem}") from None
    return text


Inside = Annotated[str, AfterValidator(plain_path)]
Module = Annotated[str, AfterValidator(_module)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Language = Literal["triton", "cuda"]
Fallback = Literal["original", "refuse"]


class Patch(Record):
    """`[[patch]]`: a unified diff against an installed package, applied strictly."""

    package: Identifier
    """A top-level package that the server imports."""
    file: Inside
    """The diff, in the bundle's directory; its paths start in the package."""
    pre_sha256: dict[Inside, Sha256] = {}
    """Path in the package → sha256 of the file it applies to, for every file of the diff that is not new."""


class Overlay(Record):
    """`[[overlay]]`: a whole file of an installed package, replaced or added."""

    package: Identifier
    """A top-level package that the server imports."""
    path: Inside
    """In the package."""
    file: Inside
    """Its new content, in the bundle's directory."""
    pre_sha256: Sha256 | None = None
    """Of the file it replaces; None for a file that the package does not have."""


class Plugin(Record):
    """`[[plugin]]`: a module that every server process loads through the engine's own plugin entry points."""

    module: Module
    """Its name in the server."""
    file: Inside
    """In the bundle's directory."""
    entry: Identifier = "activate"
    """The function that is called, without arguments."""


class Kernel(Record):
    """`[[kernel]]`: a CUDA or Triton source, built once on the machine that serves."""

    name: Module
    """`LOOP_KERNEL_<NAME>` holds the path of what was built."""
    language: Language
    sources: tuple[Inside, ...] = Field(min_length=1)
    """In the bundle's directory; the build finds them under these paths."""
    module: Inside
    """A Python file in the bundle's directory that dispatches to it; loaded like a plugin, under its stem."""
    entry: Identifier = "activate"
    """The function of `module` that is called."""
    build: tuple[str, ...] = ()
    """Argv, run where the sources are; default: nvcc to a shared library, or byte-compile and import for Triton."""
    output: Inside | None = None
    """What the build makes; default: `<name>.so`, or the sources' directory for Triton."""
    fallback: Fallback = "refuse"
    """When it cannot be built: do not start, or serve without it (and never count as engaged)."""


class Model(Record):
    """`[[model]]`: a script that writes another checkpoint from the one that is served."""

    script: Inside
    """In the bundle's directory; run apart, without the server's environment."""
    entry: Identifier = "transform"
    """Called with two paths: the checkpoint, which it must not touch, and an empty directory for the new one."""
    timeout_s: PositiveFloat = 3600.0
    memory_gb: PositiveFloat = 256.0
    """Private memory it may have, 10⁹ bytes."""


class Engaged(Record):
    """`[[engaged]]`: a proof that the change ran, looked for in every session of the candidate."""

    kind: Literal["log_regex", "server_info", "receipt", "kernel"]
    pattern: Annotated[str, Field(min_length=1)]
    """A regular expression over the server's log, a receipt's name or a kernel's; `key=value` for `server_info`."""

    @model_validator(mode="after")
    def _pattern_fits_kind(self) -> Self:
        if self.kind != "server_info":
            _pattern(self.pattern)
        elif not self.pattern.partition("=")[0] or "=" not in self.pattern:
            raise ValueError(f"{self.pattern!r} is not key=value")
        return self


class Replaced(Record):
    """A file of an installed package, and the one that takes its place."""

    package: str
    path: str
    """In the package."""
    pre_sha256: str | None
    """Of the installed file; None for one that the package does not have."""
    post_sha256: str

    @property
    def name(self) -> str:
        """`package/path`."""
        return f"{self.package}/{self.path}"

    @property
    def importable(self) -> bool:
        """Whether it is a module, so that loading it can be proven."""
        path = PurePosixPath(self.path)
        return path.suffix == ".py" and all(part.isidentifier() for part in (*path.parts[:-1], path.stem))


class LoadedPlugin(Record):
    """A plugin by content."""

    module: str
    entry: str
    sha256: str


class BuiltKernel(Record):
    """A kernel by content."""

    name: str
    language: Language
    sources: dict[str, str]
    """Path → sha256."""
    module: str
    module_sha256: str
    entry: str
    build: tuple[str, ...]
    output: str | None
    fallback: Fallback


class Transform(Record):
    """A model transform by content."""

    sha256: str
    """Of the script."""
    entry: str
    timeout_s: float
    memory_gb: float
