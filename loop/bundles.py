"""A bundle: one candidate as declared in `candidates/<id>/bundle.toml`, and its flattened, hashed content."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, field_validator

from loop.content import SHIPPED, AppliesTo, Content, Effective, Numerics
from loop.elements import Engaged, Overlay, Patch, Plugin
from loop.errors import BundleError
from loop.flags import ArgValue
from loop.plugins import closest
from loop.record import Record, read_toml
from loop.sources import Elements, Installed, Sources, apply_elements

BUNDLE_FILE = "bundle.toml"
ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Expect(Record):
    """`[expect]`: what should move, registered before the measurement."""

    workload: str | None = None
    """A workload of the suite, or None for the whole suite."""
    metric: str
    """A metric plugin."""
    effect_pct: float
    """By how much it should improve."""


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
    patch: tuple[Patch, ...] = ()
    overlay: tuple[Overlay, ...] = ()
    plugin: tuple[Plugin, ...] = ()
    engaged: tuple[Engaged, ...] = ()

    @field_validator("hypothesis", "title")
    @classmethod
    def _is_printable(cls, text: str) -> str:
        """It stands in tables and terminals: one line, and nothing that steers them."""
        line = " ".join(text.split())
        if not line.isprintable():
            raise ValueError("it holds control characters")
        if text and not line:
            raise ValueError("it is blank")
        return line


class Flattened(Record):
    """A bundle together with the content that its lineage gives it."""

    bundle_id: str
    bundle: Bundle
    lineage: tuple[str, ...]
    content: Content
    origins: dict[str, str] = {}
    """`args.x` or `env.X` → the bundle of the lineage that sets it; `shipped` for what came with shipped content."""
    files: dict[str, bytes] = {}
    """The content's files by sha256."""

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


def flatten(
    candidates: Path,
    bundle_id: str,
    *,
    engine: str,
    installed: Installed,
    shipped: Effective | None,
    original: str,
    shipped_files: Mapping[str, bytes] = MappingProxyType({}),
) -> Flattened:
    """The bundle with all its parents applied, the farthest first.

    `parent = "shipped"` is `shipped`'s content, or `original`'s where nothing is shipped. Raises BundleError on a
    missing parent or a cycle, and for code that does not fit what is `installed`.
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
    sources = _sources_of(content, shipped_files)
    for child_id, child in reversed(chain):
        content = _apply(content, child, child_id)
        sources = _apply_code(sources, child, child_id, candidates / child_id, installed)
        origins |= dict.fromkeys(_settings(child.server.args, child.server.env), child_id)
    content = content.model_copy(
        update={
            "replaced": tuple(sources.replaced[name] for name in sorted(sources.replaced)),
            "plugins": tuple(sources.plugins.values()),
            "engaged": sources.engaged,
        }
    )
    return Flattened(
        bundle_id=bundle_id,
        bundle=chain[0][1],
        lineage=tuple(lineage),
        content=content,
        origins=origins,
        files={sha256: sources.files[sha256] for sha256 in content.files},
    )


def _sources_of(content: Content, files: Mapping[str, bytes]) -> Sources:
    """The code of shipped content, for a bundle that stands on it."""
    return Sources(
        replaced={str(item): item for item in content.replaced},
        plugins={item.module: item for item in content.plugins},
        engaged=content.engaged,
        files=dict(files),
    )


def _apply_code(below: Sources, child: Bundle, child_id: str, directory: Path, installed: Installed) -> Sources:
    """`child`'s code over its parents'; what is wrong is said of the child."""
    elements = Elements(
        directory=directory, patch=child.patch, overlay=child.overlay, plugin=child.plugin, engaged=child.engaged
    )
    try:
        return apply_elements(below, elements, installed)
    except BundleError as problem:
        raise BundleError(f"{child_id}: {problem.what}", next=f"mend candidates/{child_id}/{BUNDLE_FILE}") from None


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
