"""`loop doctor`: whether this machine can measure."""

from typing import TYPE_CHECKING

import typer

from loop.commands import AsJson, EngineName, Model, Suite, print_json
from loop.errors import UnfitError

if TYPE_CHECKING:
    from loop.doctor import Diagnosis

STYLES = {"ok": "green", "warn": "bold yellow", "unfit": "bold red"}


def main(suite: Suite = None, model: Model = None, engine: EngineName = None, as_json: AsJson = False) -> None:
    """Check engine, machine, model and ledger in ten seconds; exit 5 if a round would fail or say nothing."""
    from loop.checks import Setup
    from loop.console import err
    from loop.doctor import examine
    from loop.workspace import find_workspace

    setup = Setup(workspace=find_workspace(), engine_name=engine, suite_id=suite, model_path=model)
    with err.status("") as status:
        diagnosis = examine(setup, lambda name: status.update(f"{name} …"))
    if as_json:
        print_json({"fit": diagnosis.fit, **diagnosis.document()})
    else:
        _show(diagnosis)
    if not diagnosis.fit:
        raise typer.Exit(UnfitError.exit_code)


def _show(diagnosis: "Diagnosis") -> None:
    """One line a finding, the action below it, the sum last."""
    from rich.table import Table
    from rich.text import Text

    from loop.console import out

    table = Table(box=None, padding=(0, 1), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        text = Text(finding.text)
        if finding.action:
            text.append(f"\nnext: {finding.action}", "dim")
        table.add_row(finding.check, Text(finding.status, STYLES[finding.status]), text)
    out.print(table)
    counts = diagnosis.counts
    said = ", ".join(f"{counts[status]} {status}" for status in STYLES if status in counts)
    out.print(f"{'fit to measure' if diagnosis.fit else 'not fit to measure'}: {said}")
