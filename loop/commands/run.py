"""`loop run`: evaluate one idea."""

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
    run_planned,
    show_outcome,
)
from loop.commands.plan import describe

if TYPE_CHECKING:
    from loop.ledger import Round

EXIT_BY_OUTCOME = {"improved": 0, "no_change": 10, "regressed": 11, "inconclusive": 13, "invalid": 13}
EXIT_REFUSED = 12
PROFILE_S = 8.0


def main(
    bundle: BundleId,
    suite: Suite = None,
    model: Model = None,
    baseline: Baseline = "shipped",
    engine: EngineName = None,
    protocol: Protocol = "aba",
    extend: Annotated[bool, typer.Option(help="Go on with one more B and A where A/B/A cannot tell.")] = True,
    port: Port = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Afterwards profile A and B once each, in sessions that nothing judges.")
    ] = False,
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
        bundle,
        suite=suite,
        model=model,
        baseline=baseline,
        engine=engine,
        protocol=protocol,
        extend=extend,
        port=port,
        profile_s=PROFILE_S if profile else None,
    )
    if dry_run:
        from loop import display

        print_json(describe(planned)) if as_json else display.show_plan(planned)
        return
    round_ = run_planned(planned, as_json=as_json)
    show_outcome(planned, round_, as_json=as_json)
    if exit_code:
        raise typer.Exit(_exit_code(round_))


def _exit_code(round_: "Round") -> int:
    if round_.verdict is None:
        return EXIT_BY_OUTCOME["invalid"]
    return EXIT_REFUSED if round_.verdict.refused_by else EXIT_BY_OUTCOME[round_.verdict.outcome]
