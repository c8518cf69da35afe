"""`loop run`: evaluate one idea."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from loop.commands import (
    AsJson,
    Baseline,
    BundleId,
    EngineName,
    Model,
    Port,
    Protocol,
    Suite,
    make_plan,
    print_json,
    relative,
)
from loop.commands.plan import describe

if TYPE_CHECKING:
    from loop.ledger import Round

EXIT_BY_OUTCOME = {"improved": 0, "no_change": 10, "regressed": 11, "inconclusive": 13, "invalid": 13}
EXIT_REFUSED = 12


def main(
    bundle: BundleId,
    suite: Suite = None,
    model: Model = None,
    baseline: Baseline = "shipped",
    engine: EngineName = None,
    protocol: Protocol = "aba",
    port: Port = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Validate and show the plan; start nothing.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit 0 improved, 10 no_change, 11 regressed, 12 a gate refused, 13 inconclusive or invalid.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a bundle: an A/B/A round, judged, recorded and reported."""
    planned = make_plan(
        bundle, suite=suite, model=model, baseline=baseline, engine=engine, protocol=protocol, port=port
    )
    from loop import display
    from loop.report import report_path
    from loop.run import run_round

    if dry_run:
        print_json(describe(planned)) if as_json else display.show_plan(planned)
        return
    if display.err.is_terminal and not as_json:
        with display.LiveWatcher(planned) as watcher:
            round_ = run_round(planned, watcher, argv=sys.argv[1:])
    else:
        round_ = run_round(planned, display.PlainWatcher(), argv=sys.argv[1:])
    if as_json:
        print_json(round_.document())
    else:
        display.show_round(round_)
        display.show_next(relative(report_path(planned.workspace.reports, round_)), _next_command(round_))
    if exit_code:
        raise typer.Exit(_exit_code(round_))


def _exit_code(round_: "Round") -> int:
    if round_.verdict is None:
        return EXIT_BY_OUTCOME["invalid"]
    return EXIT_REFUSED if round_.verdict.refused_by else EXIT_BY_OUTCOME[round_.verdict.outcome]


def _next_command(round_: "Round") -> str:
    if round_.promotable:
        return f"loop promote {round_.id}"
    if round_.verdict and round_.verdict.outcome in ("inconclusive", "invalid"):
        return f"loop run {round_.candidate.bundle} --protocol ababa"
    return f"loop report {round_.id}"
