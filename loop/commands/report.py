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
    from loop.report import render_round, summarize
    from loop.workspace import find_workspace

    workspace = find_workspace()
    if round_id is not None:
        round_ = read_round(round_id)
        print_json(round_.document()) if as_json else sys.stdout.write(render_round(round_))
        return
    rounds = find_ledger().read_all()
    summary = summarize(rounds)
    pointer = shipped.read(workspace)
    if as_json:
        print_json({"summary": summary.document(), "shipped": pointer.document()})
        return
    display.show_summary(summary, rounds, pointer)
