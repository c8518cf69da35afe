"""`loop report`: the ledger summed up, or one round."""

import sys
from typing import Annotated

import typer

from loop.commands import AsJson, find_ledger, print_json, read_round


def main(
    round_id: Annotated[str | None, typer.Argument(metavar="[ROUND]", help="One round, as Markdown.")] = None,
    as_json: AsJson = False,
) -> None:
    """Sum up the ledger, or print one round's report."""
    from loop import display, shipped
    from loop.console import err
    from loop.errors import HardStop
    from loop.report import render_round, summarize
    from loop.workspace import find_workspace

    workspace = find_workspace()
    if round_id is not None:
        round_ = read_round(round_id)
        print_json(round_.document()) if as_json else sys.stdout.write(render_round(round_))
        return
    ledger = find_ledger()
    rounds = ledger.read_all()
    summary = summarize(rounds)
    pointer = shipped.read(workspace)
    broken = None
    try:
        ledger.verify()
    except HardStop as problem:  # a summary of an edited ledger is still wanted, with the warning in it
        broken = str(problem)
    if as_json:
        print_json({"summary": summary.document(), "shipped": pointer.document(), "broken": broken})
        return
    display.show_summary(summary, rounds, pointer)
    if broken:
        err.print(f"do not trust this ledger: {broken}", style="bold red", markup=False)
