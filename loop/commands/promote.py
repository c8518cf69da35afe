"""`loop promote`: what production serves."""

import sys
from typing import Annotated

import typer

from loop.commands import AsJson, print_json, read_round


def main(
    round_id: Annotated[str | None, typer.Argument(metavar="[ROUND]", help="The round to ship.")] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Ship what was shipped before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what production would run; change nothing.")] = False,
    device: Annotated[str | None, typer.Option(help="With --rollback: the device; default: this one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ship a round's candidate, or roll back to what was shipped before."""
    from loop import promotion, shipped
    from loop.errors import InputError
    from loop.workspace import current_device, find_workspace

    workspace = find_workspace()
    if round_id is not None and rollback:
        raise InputError("a round and --rollback were both given; give one of them")
    if round_id is None and not rollback:
        raise InputError("give a round, or --rollback", next="`loop ledger list` shows the rounds")
    if round_id is None:
        move = promotion.plan_rollback(workspace, device or current_device())
    else:
        move = promotion.plan_promotion(workspace, read_round(round_id))
    if not as_json:
        sys.stdout.write(move.preview())
    pointer = shipped.read(workspace) if dry_run else promotion.carry_out(workspace, move)
    if as_json:
        print_json(pointer.document())
        return
    for name, entry in pointer.devices.items():
        print(f"shipped on {name}: {entry}")
    if not pointer.devices:
        print("shipped: nothing; the original is served")
