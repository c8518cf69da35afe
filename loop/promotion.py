"""Promotion: what production serves next on a device, why it may, and how the pointer moves."""

import difflib
import json
from pathlib import Path

from loop.bundles import EFFECTIVE_FILE, Effective, flatten, read_effective
from loop.durable import write_atomically
from loop.errors import InputError
from loop.host import hash_package
from loop.ledger import Ledger, Round, now_utc
from loop.plan import Options, Plan, load_engine, load_original, make_plan, read_shipped
from loop.record import Record, canonical_json
from loop.shipped import Entry, Shipped, read, write
from loop.suites import load_measured_suite
from loop.workspace import Workspace


class Move(Record):
    """A change of what one device serves, checked but not carried out."""

    device: str
    before: Effective
    after: Effective
    pointer: Shipped
    """`shipped.json` once it is carried out."""

    def preview(self) -> str:
        """The unified diff of what production runs on the device, one setting a line."""
        return "".join(
            difflib.unified_diff(
                _lines(self.before),
                _lines(self.after),
                f"now on {self.device}: {self.before.bundle}",
                f"then: {self.after.bundle}",
            )
        )


def plan_promotion(workspace: Workspace, round_: Round) -> Move:
    """The round's candidate on its device; raises InputError or HardStop with the reason why it must not ship."""
    ledger = Ledger(workspace.ledger)
    ledger.verify()
    if round_.confirms is not None:
        round_ = ledger.read(round_.confirms)
    refuse_unpromotable(workspace, round_)
    confirmation = find_confirmation(ledger, round_)
    refuse_unpromotable(workspace, confirmation)
    device, effective, pointer = round_.host.device, round_.candidate, read(workspace)
    old = pointer.devices.get(device)
    if old is not None and old.sha256 == effective.sha256:
        raise InputError(f"{effective.bundle} {effective.sha256[:16]} is what {device} serves already")
    entry = Entry(
        bundle=effective.bundle,
        sha256=effective.sha256,
        directory=str(Path("candidates") / "shipped" / effective.sha256[:16]),
        round=round_.id,
        confirmation=confirmation.id,
        since_utc=now_utc(),
    )
    history = (*pointer.history.get(device, ()), old) if old else pointer.history.get(device, ())
    return Move(
        device=device,
        before=_serving(workspace, device),
        after=effective,
        pointer=pointer.model_copy(
            update={"devices": {**pointer.devices, device: entry}, "history": {**pointer.history, device: history}}
        ),
    )


def plan_rollback(workspace: Workspace, device: str) -> Move:
    """What was shipped before on `device`; with nothing before, nothing (the original is served)."""
    pointer = read(workspace)
    if device not in pointer.devices:
        raise InputError(f"nothing is shipped on {device}: there is nothing to roll back")
    earlier = pointer.history.get(device, ())
    devices = {name: entry for name, entry in pointer.devices.items() if name != device}
    if earlier:
        devices[device] = earlier[-1]
    after = read_effective(workspace.root / earlier[-1].directory) if earlier else _original(workspace, device)
    return Move(
        device=device,
        before=_serving(workspace, device),
        after=after,
        pointer=pointer.model_copy(update={"devices": devices, "history": {**pointer.history, device: earlier[:-1]}}),
    )


def carry_out(workspace: Workspace, move: Move) -> Shipped:
    """Content first, then the pointer, each atomically: production serves the old bundle or the new one."""
    entry = move.pointer.devices.get(move.device)
    if entry is not None:
        path = workspace.root / entry.directory / EFFECTIVE_FILE
        write_atomically(path, canonical_json(move.after.document()) + b"\n")
    write(workspace, move.pointer)
    return move.pointer


def plan_confirmation(workspace: Workspace, round_: Round, *, protocol: str, port: int | None) -> Plan:
    """A fresh round of the same candidate against what is shipped; raises InputError where it could not ship."""
    refuse_unpromotable(workspace, round_)
    if round_.purpose == "confirmation":
        raise InputError(f"{round_.id} is a confirmation itself", next=f"`loop promote {round_.confirms}`")
    options = Options(
        suite=round_.suite.id,
        model=round_.model.path,
        engine=round_.engine.name,
        protocol=protocol,
        port=port,
        purpose="confirmation",
        confirms=round_.id,
    )
    plan = make_plan(workspace, round_.candidate.bundle, options)
    if plan.fingerprint != round_.fingerprint:
        raise InputError(
            f"{round_.id} was measured under other conditions: {'; '.join(plan.terms.differing(round_.terms))}",
            next=f"`loop run {round_.candidate.bundle}` measures it under these",
        )
    return plan


def find_confirmation(ledger: Ledger, round_: Round) -> Round:
    """The round that decides whether `round_`'s win is real: its first confirmation that came to a verdict.

    The first, not the best: whoever may try again until a round wins confirms noise. Raises InputError where there is
    none, or where it did not confirm.
    """
    for other in ledger.read_all():
        if other.confirms != round_.id or other.verdict is None or other.verdict.outcome == "invalid":
            continue
        if other.promotable and other.candidate.sha256 == round_.candidate.sha256:
            return other
        raise InputError(
            f"{other.id} did not confirm {round_.id}: {other.verdict.outcome}, {other.verdict.text}",
            next=f"`loop report {other.id}`; a new `loop run {round_.candidate.bundle}` starts over",
        )
    raise InputError(
        f"{round_.id} is not confirmed: of many tries the best one looks better than it is",
        next=f"`loop confirm {round_.id}` measures it afresh",
    )


def refuse_unpromotable(workspace: Workspace, round_: Round) -> None:
    """Raise InputError with the first reason why this round must not ship, confirmed or not."""
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
    if round_.revision.package_sha256 != hash_package():
        raise InputError(
            f"{round_.id} was measured and judged by another loop: {round_.revision.package_sha256[:16]}, "
            f"this one is {hash_package()[:16]}",
            next=f"`loop run {round_.candidate.bundle}` measures it with this one",
        )
    if round_.engine.name != workspace.settings.engine.name:
        raise InputError(
            f"{round_.id} was measured with the engine {round_.engine.name}; this workspace serves "
            f"{workspace.settings.engine.name}"
        )
    load_measured_suite(workspace.workloads, round_.suite.id, round_.suite.sha256)
    serving = _serving(workspace, round_.host.device)
    if round_.baseline.sha256 != serving.sha256:
        raise InputError(
            f"{round_.id} was measured against {round_.baseline.bundle} {round_.baseline.sha256[:16]}; "
            f"shipped now is {serving.bundle}",
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


def _serving(workspace: Workspace, device: str) -> Effective:
    return read_shipped(workspace, device) or _original(workspace, device)


def _original(workspace: Workspace, device: str) -> Effective:
    return load_original(workspace, load_engine(workspace, None), workspace.on(device).original)


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
