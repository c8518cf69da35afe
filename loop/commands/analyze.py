"""`loop analyze`: what profiles say about where time goes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loop.commands import AsJson, print_json

if TYPE_CHECKING:
    from loop.analysis.capture import Capture

Traces = Annotated[
    list[Path] | None,
    typer.Argument(metavar="TRACE...", help="Torch-profiler traces, or directories of them.", show_default=False),
]


def main(
    traces: Traces = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the tables: CSV, and JSON with all of them.")] = None,
    table: Annotated[list[str] | None, typer.Option(help="Only this table; may be repeated.")] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(help="A trace with stacks and without graphs that explains the others' graphs; else found."),
    ] = None,
    rank: Annotated[str | None, typer.Option(help="Which rank, as in file names: `TP-0`; default: the first.")] = None,
    anchor: Annotated[
        str | None, typer.Option(help="Part of the name of a kernel that begins every layer, where nothing else tells.")
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Compare two traces or directories: before, after.")] = False,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table on the terminal.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Read traces of any SGLang: kernels, idle gaps, passes, layers, fusion and overlap, each with one next edit."""
    from loop.analysis.pairing import open_captures
    from loop.errors import InputError

    paths = traces or []
    if not paths:
        raise InputError("no trace is named", next="loop analyze TRACE.trace.json.gz")
    if diff:
        if len(paths) != 2:
            raise InputError(f"--diff compares two traces, {len(paths)} are named", next="loop analyze --diff A B")
        before, after = (open_captures([path], rank=rank, mapping=mapping, anchor=anchor) for path in paths)
        _show_difference(before, after, out=out, top=top, as_json=as_json)
        return
    captures = open_captures(paths, rank=rank, mapping=mapping, anchor=anchor)
    _show_evidence(captures, tuple(table or ()), out=out, top=top, as_json=as_json)


def _show_evidence(
    captures: "tuple[Capture, ...]", tables: tuple[str, ...], *, out: Path | None, top: int, as_json: bool
) -> None:
    from loop import exhibits
    from loop.analysis.evidence import gather
    from loop.console import err
    from loop.wording import count

    evidence = [gather(capture, tables) for capture in captures]
    if out:
        written = exhibits.write_evidence(evidence, out)
        err.print(f"{count(len(written), 'file')} written to {out}", markup=False, soft_wrap=True)
    if as_json:
        print_json([each.document() for each in evidence])
        return
    for each in evidence:
        exhibits.show_evidence(each, num_rows=top)


def _show_difference(
    before: "tuple[Capture, ...]", after: "tuple[Capture, ...]", *, out: Path | None, top: int, as_json: bool
) -> None:
    from loop import exhibits
    from loop.analysis.difference import Difference

    filled = Difference().fill(before, after)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        exhibits.write_csv(filled, out / "difference.csv")
    if as_json:
        print_json(filled.document())
    else:
        exhibits.show_table(filled, num_rows=top)
