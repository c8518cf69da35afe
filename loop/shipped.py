"""Shipped: the bundle production serves now on each device, and the round that proved it."""

import difflib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from loop.bundles import EFFECTIVE_FILE, Effective, flatten
from loop.errors import InputError, LoopError
from loop.ledger import Ledger, Round, now_utc, write_atomically
from loop.plan import load_engine, load_original, read_shipped
from loop.record import Record, canonical_json, parse
from loop.suites import load_measured_suite
from loop.workspace import Workspace

POINTER = "shipped.json"


class Entry(Record):
    """What one device serves."""

    bundle: str
    sha256: str
    directory: str
    """Relative to the workspace; holds `effective.json`. Named by content, never written twice."""
    round: str
    """The round that proved it."""
    since_utc: str


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


def refuse_unpromotable(workspace: Workspace, round_: Round) -> None:
    """Raise InputError with the first reason why this round must not ship."""
    if round_.verdict is None or not round_.promotable:
        found = (
            f"{round_.verdict.outcome} ({round_.verdict.reason})" if round_.verdict else f"{round_.status}, no verdict"
        )
        raise InputError(f"{round_.id} is {found}: only an improved round with every gate passed can ship")
    if round_.revision.dirty:
        raise InputError(
            f"{round_.id} was measured with a changed judge: {', '.join(round_.revision.dirty[:5])}",
            next="commit loop/ and workloads/, then run the round again",
        )
    if round_.engine.name != workspace.settings.engine.name:
        raise InputError(
            f"{round_.id} was measured with the engine {round_.engine.name}; this workspace serves "
            f"{workspace.settings.engine.name}"
        )
    load_measured_suite(workspace.workloads, round_.suite.id, round_.suite.sha256)
    baseline = read_shipped(workspace, round_.host.device)
    original = workspace.on(round_.host.device).original
    shipped_now = baseline.bundle if baseline else original
    if round_.baseline.sha256 != _sha_of_shipped(workspace, round_, baseline):
        raise InputError(
            f"{round_.id} was measured against {round_.baseline.bundle} {round_.baseline.sha256[:16]}; "
            f"shipped now is {shipped_now}",
            next=f"`loop run {round_.candidate.bundle}` measures it against what is shipped",
        )
    if (workspace.candidates / round_.candidate.bundle).is_dir():
        current = _flattened_sha(workspace, round_)
        if current != round_.candidate.sha256:
            raise InputError(
                f"candidates/{round_.candidate.bundle} was changed after {round_.id}: it hashes to {current[:16]}, "
                f"measured was {round_.candidate.sha256[:16]}",
                next=f"`loop run {round_.candidate.bundle}` measures what it is now",
            )


def promote(workspace: Workspace, round_: Round) -> Shipped:
    """Ship the round's candidate on its device: content first, then the pointer, atomically."""
    Ledger(workspace.ledger).verify()
    refuse_unpromotable(workspace, round_)
    effective = round_.candidate
    directory = Path("candidates") / "shipped" / effective.sha256[:16]
    write_atomically(workspace.root / directory / EFFECTIVE_FILE, canonical_json(effective.document()) + b"\n")
    entry = Entry(
        bundle=effective.bundle,
        sha256=effective.sha256,
        directory=str(directory),
        round=round_.id,
        since_utc=now_utc(),
    )
    return _move(workspace, round_.host.device, entry)


def roll_back(workspace: Workspace, device: str) -> Shipped:
    """Ship what was shipped before on `device`; with nothing before, ship nothing (the original is served)."""
    pointer = read(workspace)
    if device not in pointer.devices:
        raise InputError(f"nothing is shipped on {device}: there is nothing to roll back")
    earlier = pointer.history.get(device, ())
    devices = {name: entry for name, entry in pointer.devices.items() if name != device}
    if earlier:
        devices[device] = earlier[-1]
    moved = pointer.model_copy(update={"devices": devices, "history": {**pointer.history, device: earlier[:-1]}})
    write(workspace, moved)
    return moved


def preview(workspace: Workspace, round_: Round) -> str:
    """The unified diff of what production would run on the round's device."""
    before = read_shipped(workspace, round_.host.device) or _original(workspace, round_)
    return "".join(
        difflib.unified_diff(
            _lines(before), _lines(round_.candidate), f"now: {before.bundle}", f"{round_.id}: {round_.candidate.bundle}"
        )
    )


def _move(workspace: Workspace, device: str, entry: Entry) -> Shipped:
    pointer = read(workspace)
    old = pointer.devices.get(device)
    if old is not None and old.sha256 == entry.sha256:
        raise InputError(f"{entry.bundle} {entry.sha256[:16]} is what {device} serves already")
    history = (*pointer.history.get(device, ()), old) if old else pointer.history.get(device, ())
    moved = pointer.model_copy(
        update={"devices": {**pointer.devices, device: entry}, "history": {**pointer.history, device: history}}
    )
    write(workspace, moved)
    return moved


def write(workspace: Workspace, pointer: Shipped) -> None:
    """Replace the pointer atomically; raises LoopError if it cannot be written, with production unchanged."""
    path = workspace.candidates / POINTER
    try:
        write_atomically(path, json.dumps(pointer.document(), indent=2, sort_keys=True).encode() + b"\n")
    except OSError as problem:
        raise LoopError(f"{path} cannot be written: {problem}; production is unchanged") from None


def _original(workspace: Workspace, round_: Round) -> Effective:
    engine = load_engine(workspace, round_.engine.name)
    return load_original(workspace, engine, workspace.on(round_.host.device).original)


def _sha_of_shipped(workspace: Workspace, round_: Round, baseline: Effective | None) -> str:
    return (baseline or _original(workspace, round_)).sha256


def _flattened_sha(workspace: Workspace, round_: Round) -> str:
    device = round_.host.device
    return flatten(
        workspace.candidates,
        round_.candidate.bundle,
        engine=round_.engine.name,
        shipped=read_shipped(workspace, device),
        original=workspace.on(device).original,
    ).sha256


def _lines(effective: Effective) -> list[str]:
    """What production runs, one setting a line."""
    content = effective.content
    options = [f"--{name} {json.dumps(value)}\n" for name, value in sorted(content.args.items())]
    variables = [f"{name}={value}\n" for name, value in sorted(content.env.items())]
    return [*variables, f"{content.engine}\n", *options]
