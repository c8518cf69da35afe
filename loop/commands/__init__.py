"""One file per command: its stem is the command, its function `main` parses nothing and prints everything.

Everything heavy is imported inside the command that needs it, so that `loop --help` answers at once.
"""

import json
import shlex
import sys
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
LONGEST = "ababa"
RoundId = Annotated[str, typer.Argument(metavar="ROUND", help="A round's id or any unique prefix: R000012, 12.")]


def make_plan(
    bundle: str,
    *,
    suite: str | None,
    model: str | None,
    baseline: str,
    engine: str | None,
    protocol: str,
    extend: bool = True,
    port: int | None = None,
    profile_s: float | None = None,
) -> "Plan":
    """A validated plan in the workspace around the working directory."""
    from loop import plan
    from loop.bundles import refuse_reserved
    from loop.workspace import find_workspace

    workspace = find_workspace()
    refuse_reserved(workspace.candidates)
    options = plan.Options(
        suite=suite,
        model=model,
        baseline=baseline,
        engine=engine,
        protocol=protocol,
        extend=extend,
        port=port,
        profile_s=profile_s,
    )
    return plan.make_plan(workspace, bundle, options)


def run_planned(planned: "Plan", *, as_json: bool) -> "Round":
    """Run the round, with a live view on a terminal and plain lines elsewhere."""
    from loop import progress
    from loop.console import err
    from loop.run import run_round

    if err.is_terminal and not as_json:
        with progress.LiveWatcher(planned) as watcher:
            return run_round(planned, watcher, argv=sys.argv[1:])
    return run_round(planned, progress.PlainWatcher(), argv=sys.argv[1:])


def show_outcome(planned: "Plan", round_: "Round", *, as_json: bool) -> None:
    """What came of a round, where its report is, and the next command."""
    from loop import display
    from loop.report import report_path

    if as_json:
        print_json(round_.document())
    else:
        display.show_round(round_)
        display.show_next(relative(report_path(planned.workspace.reports, round_)), next_command(round_))


def next_command(round_: "Round") -> str:
    """The one command to type after a round."""
    if round_.promotable:
        return f"loop promote {round_.confirms}" if round_.confirms else f"loop confirm {round_.id}"
    noisy = round_.verdict and (round_.verdict.outcome == "inconclusive" or round_.verdict.reason == "drift")
    if noisy and round_.purpose == "candidate" and round_.protocol != LONGEST:
        return _longer(round_)
    return f"loop report {round_.id}"


def _longer(round_: "Round") -> str:
    """The round's own command with the longest protocol: more sessions tell smaller effects from noise."""
    kept = []
    words = iter(round_.argv or ("run", round_.candidate.bundle))
    for word in words:
        if word == "--protocol":
            next(words, None)
        elif not word.startswith("--protocol="):
            kept.append(word)
    return shlex.join(["loop", *kept, "--protocol", LONGEST])


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
