"""One file per command: its stem is the command, its function `main` parses nothing and prints everything.

Everything heavy is imported inside the command that needs it, so that `loop --help` answers at once.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from loop.ledger import Ledger, Round
    from loop.plan import Plan

Suite = Annotated[str | None, typer.Option(help="The suite; default: the workspace's.")]
Model = Annotated[str | None, typer.Option(help="The checkpoint directory; default: MODEL_PATH, then loop.toml.")]
Baseline = Annotated[str, typer.Option(help="What A serves: `shipped`, `original` or a bundle.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="The engine; default: the workspace's.")]
Port = Annotated[int | None, typer.Option(help="Where servers listen; default: any free port.")]
Protocol = Annotated[str, typer.Option(help="Order of sessions: `aba`, `abba` or `ababa`.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; everything else on stderr.")]
BundleId = Annotated[str, typer.Argument(metavar="BUNDLE", help="A directory in candidates/.")]
RoundId = Annotated[str, typer.Argument(metavar="ROUND", help="A round's id or any unique prefix: R000012, 12.")]


def make_plan(
    bundle: str,
    *,
    suite: str | None,
    model: str | None,
    baseline: str,
    engine: str | None,
    protocol: str,
    port: int | None = None,
) -> "Plan":
    """A validated plan in the workspace around the working directory."""
    from loop import plan
    from loop.workspace import find_workspace

    options = plan.Options(suite=suite, model=model, baseline=baseline, engine=engine, protocol=protocol, port=port)
    return plan.make_plan(find_workspace(), bundle, options)


def find_ledger() -> "Ledger":
    """The ledger of the workspace around the working directory."""
    from loop.ledger import Ledger
    from loop.workspace import find_workspace

    return Ledger(find_workspace().ledger)


def read_round(prefix: str) -> "Round":
    """The round that `prefix` names."""
    ledger = find_ledger()
    return ledger.read(ledger.find(prefix))


def relative(path: Path) -> Path:
    """A path as short as it can be said from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))
