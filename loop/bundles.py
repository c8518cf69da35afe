"""A bundle: one candidate as declared in `candidates/<id>/bundle.toml`, and its flattened, hashed content."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, field_validator

from loop.errors import BundleError
from loop.flags import ArgValue
from loop.plugins import closest
from loop.record import Record, canonical_json, parse, read_toml, sha256_of

BUNDLE_FILE = "bundle.toml"
EFFECTIVE_FILE = "effective.json"
ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SHIPPED = "shipped"
"""Reserved: it names what production serves, and `candidates/shipped/` is where promoted content lies."""
Numerics = Literal["exact", "near", "lossy"]


class Expect(Record):
    """`[expect]`: what should move, registered before the measurement."""

    workload: str | None = None
    """A workload of the suite, or None for the whole suite."""
    metric: str
    """A metric plugin."""
    effect_pct: float
    """By how much it should improve."""


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


class Server(Record):
    """`[server]`: options and environment of the server."""

    args: dict[str, ArgValue] = {}
    """Option without its dashes → value. A switch takes true or false."""
    unset: tuple[str, ...] = ()
    """Options of the parent to drop."""
    env: dict[str, str] = {}
    """Environment variables of every server process."""


class Bundle(Record):
    """`bundle.toml` as written."""

    schema_: Literal["loop.bundle/1"] = Field(alias="schema")
    hypothesis: str = Field(min_length=1)
    """One sentence: why this should be faster."""
    title: str = ""
    parent: str | None = None
    """`shipped`, `original` or a bundle id, whose content this one changes; None for nothing."""
    numerics: Numerics = "exact"
    """Whether outputs may differ: selects how strict the gates are."""
    expect: Expect | None = None
    applies_to: AppliesTo = AppliesTo()
    server: Server = Server()


class Content(Record):
    """What a bundle is once its parents are applied. Its sha256 is the bundle's identity."""

    engine: str
    args: dict[str, ArgValue]
    env: dict[str, str]
    numerics: Numerics
    applies_to: AppliesTo


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

    def write(self, directory: Path) -> Path:
        """Write `effective.json` into `directory`, which may exist."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / EFFECTIVE_FILE
        path.write_bytes(canonical_json(self.document()) + b"\n")
        return path


class Flattened(Record):
    """A bundle together with the content that its lineage gives it."""

    bundle_id: str
    bundle: Bundle
    lineage: tuple[str, ...]
    content: Content
    origins: dict[str, str] = {}
    """`args.x` or `env.X` → the bundle of the lineage that sets it; `shipped` for what came with shipped content."""

    @property
    def sha256(self) -> str:
        """The bundle's identity."""
        return self.content.digest()


def bundle_ids(candidates: Path) -> list[str]:
    """The bundles in `candidates`, sorted."""
    return sorted({path.parent.name for path in candidates.glob(f"*/{BUNDLE_FILE}")} - {SHIPPED})


def refuse_reserved(candidates: Path) -> None:
    """Raise BundleError if somebody put a bundle where promoted content lies: `shipped` would not mean it."""
    path = candidates / SHIPPED / BUNDLE_FILE
    if path.exists():
        raise BundleError(
            f"{path} is no bundle: {SHIPPED!r} is a reserved name for what production serves, "
            f"and candidates/{SHIPPED}/ is where promoted content lies",
            next=f"move {BUNDLE_FILE} to a directory with another name in {candidates}",
        )


def read_bundle(candidates: Path, bundle_id: str) -> Bundle:
    """`candidates/<id>/bundle.toml`; raises BundleError naming the known bundles and the closest match."""
    if not ID_PATTERN.fullmatch(bundle_id):
        raise BundleError(f"{bundle_id!r} is not a bundle id: lower-case letters, digits, '.', '_' and '-', at most 64")
    if bundle_id == SHIPPED:
        raise BundleError(f"{SHIPPED!r} is a reserved name for what production serves, and no bundle's id")
    path = candidates / bundle_id / BUNDLE_FILE
    if not path.is_file():
        known = bundle_ids(candidates)
        raise BundleError(
            f"no bundle called {bundle_id!r} in {candidates}; known: {', '.join(known)}{closest(bundle_id, known)}",
            next=f"write {path}, or name one of them",
        )
    return read_toml(path, Bundle, BundleError)


def flatten(candidates: Path, bundle_id: str, *, engine: str, shipped: Effective | None, original: str) -> Flattened:
    """The bundle with all its parents applied, the farthest first.

    `parent = "shipped"` is `shipped`'s content, or `original`'s where nothing is shipped. Raises BundleError on a
    missing parent or a cycle.
    """
    chain: list[tuple[str, Bundle]] = []
    content = Content(engine=engine, args={}, env={}, numerics="exact", applies_to=AppliesTo())
    origins: dict[str, str] = {}
    lineage: list[str] = []
    name: str | None = bundle_id
    while name is not None:
        if name == SHIPPED and shipped is not None:
            content, lineage = shipped.content, [*lineage, SHIPPED, *shipped.lineage]
            origins = dict.fromkeys(_settings(content.args, content.env), SHIPPED)
            break
        name = original if name in (SHIPPED, "original") else name
        if name in lineage:
            raise BundleError(f"bundle {bundle_id!r} is its own parent: {' -> '.join([*lineage, name])}")
        bundle = read_bundle(candidates, name)
        chain.append((name, bundle))
        lineage.append(name)
        name = bundle.parent
    for child_id, child in reversed(chain):
        content = _apply(content, child, child_id)
        origins |= dict.fromkeys(_settings(child.server.args, child.server.env), child_id)
    return Flattened(bundle_id=bundle_id, bundle=chain[0][1], lineage=tuple(lineage), content=content, origins=origins)


def _settings(args: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """The names of what a bundle sets: `args.x` and `env.X`."""
    return [*(f"args.{name}" for name in args), *(f"env.{name}" for name in env)]


def _apply(parent: Content, child: Bundle, child_id: str) -> Content:
    """`child` over `parent`: its options win, `unset` drops the parent's."""
    absent = [name for name in child.server.unset if name not in parent.args]
    if absent:
        raise BundleError(
            f"{child_id}: unset names {', '.join(absent)}, which its parent does not set"
            f"{closest(absent[0], list(parent.args))}"
        )
    both = sorted(set(child.server.unset) & set(child.server.args))
    if both:
        raise BundleError(f"{child_id}: {', '.join(both)} is both set and unset")
    kept = {name: value for name, value in parent.args.items() if name not in child.server.unset}
    rank = ["exact", "near", "lossy"]
    return Content(
        engine=parent.engine,
        args={**kept, **child.server.args},
        env={**parent.env, **child.server.env},
        numerics=max(parent.numerics, child.numerics, key=rank.index),
        applies_to=_narrow(parent.applies_to, child.applies_to),
    )


def _narrow(parent: AppliesTo, child: AppliesTo) -> AppliesTo:
    """The child's target where it names one, the parent's elsewhere."""
    return AppliesTo(
        sglang=child.sglang or parent.sglang,
        gpu=child.gpu or parent.gpu,
        model_sha256=child.model_sha256 or parent.model_sha256,
    )


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
    """What B changes: `args.x` or `env.X` → (A's value, B's value); None where absent."""
    found: dict[str, tuple[Any, Any]] = {}
    for part in ("args", "env"):
        left: Mapping[str, Any] = getattr(a, part)
        right: Mapping[str, Any] = getattr(b, part)
        for name in sorted({*left, *right}):
            if left.get(name) != right.get(name):
                found[f"{part}.{name}"] = (left.get(name), right.get(name))
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
