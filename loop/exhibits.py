"""Evidence as a person sees it: on a terminal, and as CSV and JSON files."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from loop.analysis.evidence import Evidence
from loop.analysis.tables import Filled
from loop.console import out
from loop.errors import InputError
from loop.profiles import Profile
from loop.wording import count

UNITS = {"us": "µs", "pct": "%"}
LONGEST, SHORTEST = 60, 6
"""Letters of a text in a terminal; files have all of it."""


def show_evidence(evidence: Evidence, *, num_rows: int) -> None:
    """What the trace is, then every table."""
    device = evidence.device or "CPU"
    out.print(Text(evidence.trace, "bold"), soft_wrap=True)
    what = "kernels" if evidence.device else "operators"
    times = f"{what} {evidence.total_us / 1000:.3f} ms, busy {evidence.busy_us / 1000:.3f} ms"
    out.print(f"{device}, {count(evidence.num_events, 'event')}, {times}")
    for note in evidence.notes:
        out.print(Text(f"note: {note}", "yellow"))
    for filled in evidence.tables:
        show_table(filled, num_rows=num_rows)


def show_table(filled: Filled, *, num_rows: int) -> None:
    """The first rows, what to look at first, and the next edit."""
    out.print()
    out.print(Text(filled.title, "bold"))
    if not filled.rows:
        out.print(Text(f"  no rows: {filled.why_empty}"))
        return
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    shown = filled.rows[:num_rows]
    texts = {c for c in filled.brief if all(isinstance(row[c], str | None) for row in shown)}
    longest = fit([[heading(c), *(cell(row[c]) for row in shown)] for c in filled.brief], filled.brief, texts)
    for column in filled.brief:
        table.add_column(heading(column), justify="left" if column in texts else "right", no_wrap=True)
    for row in shown:
        table.add_row(*(Text(cut(cell(row[c]), longest) if c in texts else cell(row[c])) for c in filled.brief))
    out.print(table)
    left = len(filled.rows) - num_rows
    if left > 0:
        out.print(f"[dim]{count(left, 'more row')} in the files that --out writes[/]")
    if filled.advice:
        out.print(Text.assemble(("first  ", "bold"), filled.advice.look_first))
        out.print(Text.assemble(("next   ", "bold"), filled.advice.next_edit))


def show_profiles(profiles: Sequence[Profile], directory: Path) -> None:
    """What was collected, what could not be and why, the busiest rows, and the next command."""
    for profile in profiles:
        out.print(Text(f"{profile.label}: {profile.bundle}, {profile.workload}, {profile.seconds:.0f} s", "bold"))
        if profile.crash:
            out.print(Text(f"  crashed: {profile.crash}", "red"))
        for harvest in profile.harvests:
            size = sum(file.num_bytes for file in harvest.files)
            said = harvest.problem or f"{count(len(harvest.files), 'file')}, {size / 1e6:.1f} MB"
            out.print(Text(f"  {harvest.profiler} under {harvest.load}: {said}", "yellow" if harvest.problem else ""))
        for where in dict.fromkeys((row.table, row.where) for row in profile.highlights):
            rows = [row for row in profile.highlights if (row.table, row.where) == where]
            out.print(Text(f"  {where[0]} of {where[1]}"))
            for row in rows:
                place = f"  {row.location.removeprefix('sglang/')}" if row.location else ""
                out.print(Text(f"    {row.share_pct:5.1f} %  {row.name}{place}"), soft_wrap=True)
    out.print(f"  files {directory}", markup=False, soft_wrap=True)
    out.print(f"   next loop analyze {directory}", markup=False, soft_wrap=True)


def fit(cells: Sequence[Sequence[str]], columns: Sequence[str], texts: set[str]) -> int:
    """How long texts may be so that all columns fit on the terminal; numbers are never cut."""
    longest = LONGEST
    while longest > SHORTEST and out.width < sum(
        1 + max(len(cut(text, longest)) if column in texts else len(text) for text in column_cells)
        for column, column_cells in zip(columns, cells, strict=True)
    ):
        longest -= 1
    return longest


def cut(text: str, longest: int) -> str:
    """A text with its end left out if it is too long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def heading(column: str) -> str:
    """`gpu µs` of gpu_us."""
    words = column.split("_")
    return " ".join([*words[:-1], UNITS.get(words[-1], words[-1])])


def cell(value: Any) -> str:
    """A value in a terminal."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value).removeprefix("sglang/")


def write_evidence(evidence: Sequence[Evidence], folder: Path) -> tuple[Path, ...]:
    """One JSON file per trace and one CSV file per table, named after the trace; returns the folder's new files.

    Raises InputError if the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each, stem in zip(evidence, stems([Path(e.trace) for e in evidence]), strict=True):
            written.append(folder / f"{stem}.json")
            written[-1].write_text(json.dumps(each.document(), indent=1, ensure_ascii=False), encoding="utf-8")
            for filled in each.tables:
                written.append(folder / f"{stem}.{filled.table}.csv")
                write_csv(filled, written[-1])
    except OSError as problem:
        raise InputError(f"{folder} cannot be written: {problem.strerror}", next="name another --out") from None
    return tuple(written)


def write_csv(filled: Filled, path: Path) -> None:
    """One table; a table without rows has its heading only. Missing is empty, a mapping is JSON."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(filled.columns)
        for row in filled.rows:
            writer.writerow([json.dumps(v) if isinstance(v, dict) else v for v in row.values()])


def stems(paths: Sequence[Path]) -> list[str]:
    """The files' names without endings; numbered where two are the same."""
    found: list[str] = []
    for path in paths:
        stem = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace").removesuffix(".pt")
        same = sum(other.partition("~")[0] == stem for other in found)
        found.append(f"{stem}~{same + 1}" if same else stem)
    return found
