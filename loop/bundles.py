"""A bundle: one candidate as declared in `candidates/<id>/bundle.toml`."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from loop.content import AppliesTo, Numerics
from loop.elements import Engaged, Kernel, Model, Overlay, Patch, Plugin
from loop.errors import BundleError
from loop.flags import ArgValue
from loop.plugins import closest
from loop.record import Record, read_toml

BUNDLE_FILE = "bundle.toml"
ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
SHIPPED = "shipped"
"""Reserved: it names what production serves, and `candidates/shipped/` is where promoted content lies."""


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
    kernel: tuple[Kernel, ...] = ()
    model: tuple[Model, ...] = ()
    engaged: tuple[Engaged, ...] = ()


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
