"""`loop judge`: an old round under today's rules."""

from loop.commands import AsJson, RoundId, print_json, read_round


def main(round_id: RoundId, as_json: AsJson = False) -> None:
    """Judge a stored round again with today's code; the record is not changed."""
    from loop import display
    from loop.console import out
    from loop.errors import InputError
    from loop.run import rejudge
    from loop.workspace import find_workspace

    workspace = find_workspace()
    round_ = read_round(round_id)
    if round_.status != "closed":
        raise InputError(f"{round_.id} is still running: there is nothing to judge", next="`loop ledger list`")
    judgement = rejudge(workspace, round_)
    if as_json:
        print_json(judgement.document())
        return
    if round_.verdict:
        out.print("recorded: ", display.verdict_line(round_.verdict))
    out.print("today:    ", display.verdict_line(judgement.verdict))
    recorded = (round_.verdict, round_.gates, round_.caveats, round_.score)
    today = (judgement.verdict, judgement.gates, judgement.caveats, judgement.score)
    differing = [
        name
        for name, old, new in zip(("verdict", "gates", "caveats", "score"), recorded, today, strict=True)
        if old != new
    ]
    print(
        f"the {', '.join(differing)} would differ today; the record keeps the first judgement"
        if differing
        else "the judgement is the same: verdict, gates, caveats and score"
    )
