"""Writes the generated parts of the documentation: every command's help, every field of every stored record.

`python docs/generate.py` rewrites them in place, `--check` only says what is stale. A generated part stands between
`<!-- generated: NAME -->` and `<!-- end -->`.
"""

import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from loop import checks, gates, metrics, plugins, profilers
from loop.analysis import tables
from loop.analysis.difference import DifferenceRow
from loop.analysis.evidence import table_names
from loop.analysis.tables import Table
from loop.bundles import Bundle
from loop.checks import Check
from loop.cli import app
from loop.fake_server.flags import FAULTS, build_parser
from loop.gates import Gate
from loop.ledger import Round
from loop.metrics import Metric
from loop.profilers import Profiler
from loop.record import Record
from loop.suites import Suite
from loop.workspace import Settings

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- generated: (?P<name>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
HELP_WIDTH = "80"


def commands() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    runner = CliRunner(env={"COLUMNS": HELP_WIDTH, "TERMINAL_WIDTH": HELP_WIDTH, "NO_COLOR": "1"})
    blocks = []
    for path in sorted(walk(typer.main.get_command(app), ())):
        shown = runner.invoke(app, [*path, "--help"], prog_name="loop").output
        lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
        blocks.append(f"## `{' '.join(('loop', *path))}`\n\n```text\n{lines}\n```\n")
    return "\n".join(blocks)


def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every command that does something, by path."""
    below = getattr(command, "commands", None)
    if below is None:
        yield path
        return
    for name, child in below.items():
        yield from walk(child, (*path, name))


def fields(root: type[Record]) -> str:
    """A table for a record and one for every record inside it, with the docstrings of their fields."""
    seen: dict[str, type[Record]] = {}
    pending = [root]
    while pending:
        kind = pending.pop(0)
        if kind.__name__ in seen:
            continue
        seen[kind.__name__] = kind
        for field in kind.model_fields.values():
            pending += records_in(field.annotation)
    return "\n".join(table(kind) for kind in seen.values())


def table(kind: type[Record]) -> str:
    """One record as a Markdown table."""
    rows = [
        f"### {kind.__name__}\n",
        f"{sentence(kind.__doc__)}\n",
        "| field | type | meaning |",
        "| --- | --- | --- |",
    ]
    for name, field in kind.model_fields.items():
        default = "" if field.is_required() else f" Default: `{default_of(field)}`."
        meaning = f"{sentence(field.description)}{default}".strip()
        rows.append(f"| `{field.alias or name}` | `{spell(field.annotation)}` | {meaning} |")
    return "\n".join([*rows, ""])


def plugin_table(package: types.ModuleType, base: type[Record]) -> str:
    """Every plugin of a folder: its module's sentence and its settings with their defaults."""
    rows = ["| name | what it is | settings |", "| --- | --- | --- |"]
    for name in plugins.available(package):
        kind = plugins.load(package, name, base)
        module = sys.modules[kind.__module__]
        settings = ", ".join(f"`{n} = {f.default}`" for n, f in kind.model_fields.items())
        rows.append(f"| `{name}` | {sentence(module.__doc__)} | {settings} |")
    return "\n".join([*rows, ""])


def records_in(annotation: Any) -> list[type[Record]]:
    """The record types inside a type annotation."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, Record) else []
    return [found for part in typing.get_args(annotation) for found in records_in(part)]


def spell(annotation: Any) -> str:
    """A type annotation, short."""
    text = str(annotation) if typing.get_args(annotation) else getattr(annotation, "__name__", str(annotation))
    text = re.sub(r"(?<!['\"])\b(?:loop|typing|pathlib|collections)\.(?:\w+\.)*", "", text)
    return text.replace("|", "\\|").replace("NoneType", "None")


def default_of(field: Any) -> str:
    """A default value as TOML or JSON would write it."""
    value = field.default
    return json.dumps(value.document() if isinstance(value, Record) else value)


def sentence(text: str | None) -> str:
    """The first paragraph, on one line, safe inside a table."""
    return " ".join((text or "").strip().split("\n\n")[0].split()).replace("|", "\\|")


def fake_options() -> str:
    """Every option of the fake engine, with its default and its help text."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for action in build_parser()._actions:  # noqa: SLF001 - argparse has no public list
        if action.dest == "help":
            continue
        default = "" if action.required or action.default is None else f"`{json.dumps(action.default)}`"
        listed = f"; one of {', '.join(action.choices)}" if action.choices and action.dest != "fault" else ""
        rows.append(f"| `{action.option_strings[0]}` | {default} | {sentence(action.help)}{listed} |")
    return "\n".join([*rows, ""])


def faults() -> str:
    """Every fault of the fake engine."""
    rows = [f"| `{name}` | {text} |" for name, text in FAULTS.items()]
    return "\n".join(["| fault | what the fake server does |", "| --- | --- |", *rows, ""])


def columns() -> str:
    """Every column of every table of `loop analyze`."""
    kinds = [plugins.load(tables, name, Table) for name in table_names()]
    rows = [("difference", "What moved between two profiles", DifferenceRow)]
    rows = [*((kind.name, sentence(sys.modules[kind.__module__].__doc__), kind.row) for kind in kinds), *rows]
    return "\n".join(
        "\n".join(
            [
                f"### `{name}`\n",
                f"{text.rstrip('.')}. {sentence(row.__doc__)}\n",
                "| column | meaning |",
                "| --- | --- |",
            ]
            + [f"| `{column}` | {sentence(field.description)} |" for column, field in row.model_fields.items()]
            + [""]
        )
        for name, text, row in rows
    )


PARTS = {
    "commands": commands,
    "bundle": lambda: fields(Bundle),
    "suite": lambda: fields(Suite),
    "settings": lambda: fields(Settings),
    "round": lambda: fields(Round),
    "gates": lambda: plugin_table(gates, Gate),
    "metrics": lambda: plugin_table(metrics, Metric),
    "checks": lambda: plugin_table(checks, Check),
    "tables": lambda: plugin_table(tables, Table),
    "profilers": lambda: plugin_table(profilers, Profiler),
    "columns": columns,
    "fake-options": fake_options,
    "faults": faults,
}


def render(text: str) -> str:
    """A page with its generated parts made anew."""
    return PART.sub(lambda part: f"{part.group(1)}{PARTS[part.group('name')]()}{part.group(3)}", text)


def main(arguments: list[str]) -> int:
    """Rewrite every page, or say which are stale."""
    stale = []
    for path in sorted([*DOCS.glob("*.md"), DOCS.parent / "README.md"]):
        text = path.read_text(encoding="utf-8")
        made = render(text)
        if made != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(made, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"stale: {', '.join(stale)}; `make docs` writes them anew")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
