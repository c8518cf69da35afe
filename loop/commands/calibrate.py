"""`loop calibrate`: the noise of this machine, from A against A."""

from typing import Annotated

import typer

from loop.commands import AsJson, EngineName, Model, Port, Suite, print_json, run_planned, show_outcome


def main(
    bundle: Annotated[str, typer.Argument(metavar="[BUNDLE]", help="What is served as A and as B.")] = "shipped",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of three sessions; each brings two degrees of freedom.")
    ] = 3,
    suite: Suite = None,
    model: Model = None,
    engine: EngineName = None,
    port: Port = None,
    as_json: AsJson = False,
) -> None:
    """Measure A against A, store it like any round, and say which effects how many sessions can certify."""
    from loop import display, plan
    from loop.calibration import floors_of
    from loop.errors import UnfitError
    from loop.ledger import Ledger
    from loop.workspace import find_workspace

    options = plan.Options(suite=suite, model=model, baseline=bundle, engine=engine, port=port, purpose="calibration")
    workspace = find_workspace()
    for _ in range(rounds):
        planned = plan.make_plan(workspace, bundle, options)
        last = run_planned(planned, as_json=as_json)
        if not as_json:
            show_outcome(planned, last, as_json=False)
        if not last.comparisons:
            raise UnfitError(f"{last.id} measured nothing", next=f"`loop report {last.id}` says why")
    floors = floors_of(last, Ledger(workspace.ledger))
    if as_json:
        print_json([floor.document() for floor in floors])
    else:
        display.show_floors(floors)
