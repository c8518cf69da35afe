"""`loop analyze`: what profiles say about where time goes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loop.commands import AsJson, print_json

if TYPE_CHECKING:
    from loop.analysis.capture import Capture
    from loop.analysis.roofline_tables import Question
    from loop.analysis.tables import Filled

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
    capacity: Annotated[
        Path | None,
        typer.Option("--capacity", metavar="LOG", help="Instead: a server's log, and where its memory went."),
    ] = None,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Instead: every operator of a pass against what the device can do.")
    ] = False,
    model: Annotated[Path | None, typer.Option(help="A model's directory or config.json, for these two.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Requests of a pass; default: the trace's, else 1.")] = None,
    query: Annotated[int | None, typer.Option(min=1, help="New tokens of each; default: the trace's, else 1.")] = None,
    context: Annotated[int, typer.Option(min=0, help="Tokens of each that are cached already.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="As its driver calls it; default: the trace's, else this one.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that share a pass.")] = 1,
    pass_ms: Annotated[float | None, typer.Option(help="How long a pass was measured to take.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table on the terminal.")] = 12,
    as_json: AsJson = False,
) -> None:
    """Read traces of any SGLang: kernels, idle gaps, passes, layers, fusion and overlap, each with one next edit."""
    from loop.analysis.pairing import open_captures
    from loop.errors import InputError

    paths = traces or []
    if capacity is not None:
        from loop.analysis.capacity_tables import gather_capacity

        _show_tables(gather_capacity(capacity, model), out=out, top=top, as_json=as_json)
        return
    if roofline:
        from loop.analysis.roofline_tables import gather_rooflines

        captures = open_captures(paths, rank=rank, mapping=mapping, anchor=anchor) if paths else ()
        question = _ask_roofline(captures, model, device, batch, query, context, gpus, pass_ms)
        _show_tables(gather_rooflines(question, captures), out=out, top=top, as_json=as_json)
        return
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


def _ask_roofline(
    captures: "tuple[Capture, ...]",
    model: Path | None,
    device: str | None,
    batch: int | None,
    query: int | None,
    context: int,
    gpus: int,
    pass_ms: float | None,
) -> "Question":
    """What is not given comes from the trace and the workspace, if there are any."""
    from loop.analysis.roofline_tables import Question
    from loop.devices import Peaks, find_peaks
    from loop.dimensions import Dimensions
    from loop.errors import InputError
    from loop.workspace import DeviceSettings, current_device, find_workspace

    try:
        workspace = find_workspace()
    except InputError:
        workspace = None
    if model is None and workspace is None:
        raise InputError("no model is named, and there is no workspace that names one", next="give --model DIR")
    path = model if model is not None else workspace.model_path(None) if workspace else Path()
    name = device or next((c.trace.device for c in captures if c.trace.device), None) or current_device()
    own = workspace.on(name) if workspace else DeviceSettings()
    return Question(
        dimensions=Dimensions.read(path),
        device=name,
        peaks=find_peaks(name, own) or Peaks(source="nobody"),
        num_requests=batch,
        num_query_tokens=query,
        num_context_tokens=context,
        num_gpus=gpus,
        pass_us=None if pass_ms is None else 1000 * pass_ms,
    )


def _show_tables(filled: "tuple[Filled, ...]", *, out: Path | None, top: int, as_json: bool) -> None:
    from loop import exhibits

    if out:
        out.mkdir(parents=True, exist_ok=True)
        for each in filled:
            exhibits.write_csv(each, out / f"{each.table}.csv")
    if as_json:
        print_json([each.document() for each in filled])
        return
    for each in filled:
        exhibits.show_table(each, num_rows=max(top, len(each.rows)))
