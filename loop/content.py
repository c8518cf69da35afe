"""What a bundle comes to once its parents are applied: its content, and the file that the launcher gets."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from loop.elements import Engaged
from loop.errors import BundleError
from loop.flags import ArgValue
from loop.record import Record, canonical_json, parse, sha256_of

EFFECTIVE_FILE = "effective.json"
FILES = "files"
"""Beside it: the bundle's files, each named by its sha256."""
SHIPPED = "shipped"
"""Reserved: it names what production serves, and `candidates/shipped/` is where promoted content lies."""
Numerics = Literal["exact", "near", "lossy"]
CODE = ("replaced", "plugins", "engaged")


class AppliesTo(Record):
    """`[applies_to]`: where the bundle may run; refused elsewhere."""

    sglang: str | None = None
    """A version specifier, `==0.5.23`."""
    gpu: tuple[str, ...] = ()
    """Device names as the launcher finds them; `cpu` for none."""
    model_sha256: str | None = None
    """The model's hash as `loop plan` prints it."""

    @field_validator("sglang")
    @classmethod
    def _is_specifier(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                SpecifierSet(text)
            except InvalidSpecifier:
                raise ValueError(f"{text!r} is not a version specifier such as '==0.5.23'") from None
        return text


class Replacement(Record):
    """A file of an installed package that the bundle replaces whole, or adds."""

    package: str
    path: str
    """Below the package's directory."""
    pre_sha256: str | None
    """Of the installed file; None for one that is new."""
    post_sha256: str
    """Of what takes its place."""

    def __str__(self) -> str:
        return f"{self.package}/{self.path}"


class PluginModule(Record):
    """A module that every server process loads at its start, and the function in it that is called then."""

    module: str
    sha256: str
    entry: str


class Content(Record):
    """What a bundle is once its parents are applied. Its sha256 is the bundle's identity."""

    engine: str
    args: dict[str, ArgValue]
    env: dict[str, str]
    numerics: Numerics
    applies_to: AppliesTo
    replaced: tuple[Replacement, ...] = ()
    plugins: tuple[PluginModule, ...] = ()
    engaged: tuple[Engaged, ...] = ()
    """What must show that the change ran, beside what shows by itself."""

    @model_serializer(mode="wrap")
    def _without_empty_code(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A bundle of options alone hashes to what it did before bundles could carry code."""
        document: dict[str, Any] = serialize(self)
        return {name: value for name, value in document.items() if value or name not in CODE}

    @property
    def has_code(self) -> bool:
        """Whether it brings files of its own."""
        return bool(self.replaced or self.plugins)

    @property
    def files(self) -> frozenset[str]:
        """The sha256 of every file that it needs."""
        return frozenset([*(item.post_sha256 for item in self.replaced), *(item.sha256 for item in self.plugins)])


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
    """Where the engine looks for plugins; empty for a bundle without code."""
    seal: str = ""
    """sha256 of the canonical JSON of everything else here: what the launcher runs cannot be edited unnoticed."""

    @field_validator("asked")
    @classmethod
    def _as_json(cls, asked: dict[str, Any]) -> dict[str, Any]:
        """Lists as JSON has them: what is held here and what is read back must be equal."""
        value: dict[str, Any] = json.loads(canonical_json(asked))
        return value

    @property
    def expected_seal(self) -> str:
        """What the seal must be."""
        return sha256_of({name: value for name, value in self.document().items() if name != "seal"})

    def sealed(self) -> "Effective":
        """This, with its seal."""
        return self.model_copy(update={"seal": self.expected_seal})

    @model_serializer(mode="wrap")
    def _without_group(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The seal of a bundle of options alone is what it was before bundles could carry code."""
        document: dict[str, Any] = serialize(self)
        return {name: value for name, value in document.items() if value or name != "plugin_group"}

    def write(self, directory: Path, files: Mapping[str, bytes] = MappingProxyType({})) -> Path:
        """Write `effective.json` and what it needs of `files` (by sha256) into `directory`, which may exist."""
        path = directory / EFFECTIVE_FILE
        directory.mkdir(parents=True, exist_ok=True)
        for sha256 in sorted(self.content.files):
            (directory / FILES).mkdir(exist_ok=True)
            (directory / FILES / sha256).write_bytes(files[sha256])
        path.write_bytes(canonical_json(self.document()) + b"\n")
        return path


def check_target(content: Content, *, engine_version: str | None, device: str, model_sha256: str) -> None:
    """Raise BundleError where the bundle says it does not apply to this version, device or model."""
    target = content.applies_to
    if target.sglang and engine_version and not SpecifierSet(target.sglang).contains(engine_version, prereleases=True):
        raise BundleError(f"the bundle applies to sglang {target.sglang}; installed is {engine_version}")
    if target.gpu and device not in target.gpu:
        raise BundleError(f"the bundle applies to {', '.join(target.gpu)}; this machine has {device}")
    if target.model_sha256 and target.model_sha256 != model_sha256:
        raise BundleError(f"the bundle applies to model {target.model_sha256[:16]}; this one is {model_sha256[:16]}")


def differences(a: Content, b: Content) -> dict[str, tuple[Any, Any]]:
    """What B changes: `args.x`, `env.X`, `file.package/path` or `plugin.x` → (A's value, B's value); None if absent."""
    found: dict[str, tuple[Any, Any]] = {}
    for part, left, right in (
        ("args", a.args, b.args),
        ("env", a.env, b.env),
        ("file", _files_by_name(a), _files_by_name(b)),
        ("plugin", _plugins_by_name(a), _plugins_by_name(b)),
    ):
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                found[f"{part}.{name}"] = (left.get(name), right.get(name))
    return found


def _files_by_name(content: Content) -> dict[str, Any]:
    return {str(item): item.post_sha256[:16] for item in content.replaced}


def _plugins_by_name(content: Content) -> dict[str, Any]:
    return {item.module: item.sha256[:16] for item in content.plugins}


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


def read_files(effective: Effective, directory: Path) -> dict[str, bytes]:
    """The files of the effective bundle in `directory` by sha256; raises BundleError for a missing or edited one."""
    found = {}
    for sha256 in sorted(effective.content.files):
        path = directory / FILES / sha256
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise BundleError(f"{path} cannot be read: {problem.strerror}", next=_way_out(directory)) from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise BundleError(f"{path} was edited after it was written", next=_way_out(directory))
        found[sha256] = content
    return found


def _way_out(directory: Path) -> str:
    """What brings an effective bundle back: promoted content comes from a round, an original from its TOML."""
    if directory.parent.name == SHIPPED:
        return "restore it from git, or `loop promote --rollback`"
    return "`loop init` writes it anew, or restore it from git"
