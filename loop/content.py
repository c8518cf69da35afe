"""Content: what a bundle is once its parents are applied. Its sha256 is the bundle's identity."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import SerializerFunctionWrapHandler, field_validator, model_serializer

from loop.elements import BuiltKernel, Engaged, LoadedPlugin, Replaced, Transform
from loop.errors import BundleError
from loop.flags import ArgValue
from loop.record import Record

Numerics = Literal["exact", "near", "lossy"]
CODE = ("replaced", "plugins", "kernels", "transforms", "engaged")
"""Fields of code: left out of the JSON where they are empty, so that a bundle of flags hashes as it always did."""


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


class Content(Record):
    """What a bundle is once its parents are applied: options, and code by the sha256 of its files."""

    engine: str
    args: dict[str, ArgValue]
    env: dict[str, str]
    numerics: Numerics
    applies_to: AppliesTo
    replaced: tuple[Replaced, ...] = ()
    """Files of installed packages, whole, by package and path: patches and overlays come to the same."""
    plugins: tuple[LoadedPlugin, ...] = ()
    """In the order in which they are loaded."""
    kernels: tuple[BuiltKernel, ...] = ()
    transforms: tuple[Transform, ...] = ()
    """Of the checkpoint, in order."""
    engaged: tuple[Engaged, ...] = ()

    @model_serializer(mode="wrap")
    def _without_empty_code(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        return {name: value for name, value in document.items() if name not in CODE or value}

    @property
    def has_code(self) -> bool:
        """Whether anything but options and environment is in it."""
        return bool(self.replaced or self.plugins or self.kernels or self.transforms)

    def code_lines(self) -> list[str]:
        """What code is in it, one line each, for people."""
        return [
            *(f"replaces {item.name} by {item.post_sha256[:16]}" for item in self.replaced),
            *(f"plugin {item.module}:{item.entry} {item.sha256[:16]}" for item in self.plugins),
            *(f"kernel {item.name} ({item.language}) {item.digest()[:16]}" for item in self.kernels),
            *(f"model transformed by {item.sha256[:16]}" for item in self.transforms),
        ]

    @property
    def file_hashes(self) -> tuple[str, ...]:
        """sha256 of every file that it needs beside it, sorted."""
        found = {item.post_sha256 for item in self.replaced} | {item.sha256 for item in self.transforms}
        found |= {item.sha256 for item in self.plugins} | {item.module_sha256 for item in self.kernels}
        return tuple(sorted(found.union(*(item.sources.values() for item in self.kernels))))


def check_target(content: Content, *, engine_version: str | None, device: str, model_sha256: str) -> None:
    """Raise BundleError where the bundle says it does not apply to this version, device or model."""
    target = content.applies_to
    if target.sglang and engine_version and not SpecifierSet(target.sglang).contains(engine_version, prereleases=True):
        raise BundleError(f"the bundle applies to sglang {target.sglang}; installed is {engine_version}")
    if target.gpu and device not in target.gpu:
        raise BundleError(f"the bundle applies to {', '.join(target.gpu)}; this machine has {device}")
    if target.model_sha256 and target.model_sha256 != model_sha256:
        raise BundleError(f"the bundle applies to model {target.model_sha256[:16]}; this one is {model_sha256[:16]}")
    if content.kernels and device == "cpu":
        names = ", ".join(kernel.name for kernel in content.kernels)
        raise BundleError(f"the bundle has a kernel, {names}, and kernels need a GPU; this machine has none")


def differences(a: Content, b: Content) -> dict[str, tuple[Any, Any]]:
    """What B changes: `args.x`, `env.X`, `replaced.package/path`, ... → (A's value, B's value); None where absent.

    Code is shown by the first 16 digits of its hash.
    """
    left, right = _settings(a), _settings(b)
    return {
        name: (left.get(name), right.get(name))
        for name in sorted({*left, *right}, key=lambda name: (name.partition(".")[0] not in ("args", "env"), name))
        if left.get(name) != right.get(name)
    }


def _settings(content: Content) -> dict[str, Any]:
    named: Mapping[str, Sequence[tuple[str, str]]] = {
        "replaced": [(item.name, item.post_sha256) for item in content.replaced],
        "plugins": [(item.module, item.digest()) for item in content.plugins],
        "kernels": [(item.name, item.digest()) for item in content.kernels],
        "transforms": [(str(number), item.digest()) for number, item in enumerate(content.transforms, 1)],
    }
    code = {f"{part}.{name}": sha256[:16] for part, items in named.items() for name, sha256 in items}
    proofs = {f"engaged.{item.kind} {item.pattern}": True for item in content.engaged}
    options = {f"args.{name}": value for name, value in content.args.items()}
    return {**options, **{f"env.{name}": value for name, value in content.env.items()}, **code, **proofs}
