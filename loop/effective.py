"""Effective: a bundle with its parents applied, as the launcher reads it: `effective.json` and `files/<sha256>`."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from loop.bundles import SHIPPED
from loop.content import Content
from loop.errors import BundleError
from loop.record import Record, canonical_json, parse, sha256_of

EFFECTIVE_FILE = "effective.json"
FILES = "files"
Files = Mapping[str, bytes]
"""sha256 → content of every file that a bundle needs beside its `effective.json`."""


class Effective(Record):
    """`effective.json`: all that the launcher needs, written for an arm of a round and by `loop promote`."""

    schema_: Literal["loop.effective/1"] = Field(default="loop.effective/1", alias="schema")
    bundle: str
    lineage: tuple[str, ...]
    """The bundle and its parents, nearest first."""
    sha256: str
    """Of the content's canonical JSON."""
    content: Content
    command: tuple[str, ...]
    """The engine's argv after the interpreter; `{MODEL_PATH}`, `{HOST}` and `{PORT}` are filled by the launcher."""
    argv: tuple[str, ...]
    """The bundle's options as argv."""
    asked: dict[str, Any]
    """Resolved setting → value, for everything the bundle sets."""
    platforms: dict[str, dict[str, Any]]
    """Device → what the engine needs to run there at all."""
    plugin_group: str = ""
    """The entry-point group in which the engine looks for plugins; empty, and left out, for a bundle without code."""
    seal: str = ""
    """sha256 of the canonical JSON of everything else here: what the launcher runs cannot be edited unnoticed."""

    @field_validator("asked")
    @classmethod
    def _as_json(cls, asked: dict[str, Any]) -> dict[str, Any]:
        """Lists as JSON has them: what is held here and what is read back must be equal."""
        value: dict[str, Any] = json.loads(canonical_json(asked))
        return value

    @model_serializer(mode="wrap")
    def _without_empty_group(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        return {name: value for name, value in document.items() if name != "plugin_group" or value}

    @property
    def expected_seal(self) -> str:
        """What the seal must be."""
        return sha256_of({name: value for name, value in self.document().items() if name != "seal"})

    def sealed(self) -> "Effective":
        """This, with its seal."""
        return self.model_copy(update={"seal": self.expected_seal})

    def write(self, directory: Path, files: Files | None = None) -> Path:
        """Write `files/<sha256>` and `effective.json` into `directory`, which may exist; returns the latter's path.

        Raises BundleError if `files` lacks one that the content names.
        """
        for path, data in self.layout(directory, files or {}):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory / EFFECTIVE_FILE

    def layout(self, directory: Path, files: Files) -> Iterator[tuple[Path, bytes]]:
        """(path, content) of everything in its directory; `effective.json` comes last."""
        missing = [sha256 for sha256 in self.content.file_hashes if sha256 not in files]
        if missing:
            raise BundleError(f"{self.bundle}: the file {missing[0][:16]} of its content is gone")
        yield from ((directory / FILES / sha256, files[sha256]) for sha256 in self.content.file_hashes)
        yield directory / EFFECTIVE_FILE, canonical_json(self.document()) + b"\n"


def read_files(directory: Path, hashes: Iterable[str]) -> dict[str, bytes]:
    """The files of the effective bundle in `directory`; raises BundleError for one that is missing or was edited."""
    found = {}
    for sha256 in hashes:
        path = directory / FILES / sha256
        try:
            found[sha256] = path.read_bytes()
        except OSError as problem:
            raise BundleError(f"{path} cannot be read: {problem.strerror}", next=_way_out(directory)) from None
        if hashlib.sha256(found[sha256]).hexdigest() != sha256:
            raise BundleError(f"{path} was edited after it was written", next=_way_out(directory))
    return found


def read_effective(directory: Path) -> Effective:
    """The effective bundle in `directory`; raises BundleError if it was edited."""
    path = directory / EFFECTIVE_FILE
    try:
        effective = parse(json.loads(path.read_bytes()), Effective, BundleError, where=str(path))
    except OSError as problem:
        raise BundleError(f"{path} cannot be read: {problem.strerror}", next=_way_out(directory)) from None
    except ValueError as problem:
        raise BundleError(f"{path} is not JSON: {problem}", next=_way_out(directory)) from None
    except BundleError as problem:
        raise BundleError(problem.what, next=_way_out(directory)) from None
    if effective.content.digest() != effective.sha256 or effective.expected_seal != effective.seal:
        raise BundleError(f"{path} was edited after it was written", next=_way_out(directory))
    return effective


def _way_out(directory: Path) -> str:
    """What brings an effective bundle back: promoted content comes from a round, an original from its TOML."""
    if directory.parent.name == SHIPPED:
        return "restore it from git, or `loop promote --rollback`"
    return "`loop init` writes it anew, or restore it from git"
