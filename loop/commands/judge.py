"""`loop judge`: an old round under today's rules."""

from loop.commands import AsJson, RoundId, print_json, read_round


def main(round_id: RoundId, as_json: AsJson = False) -> None:
    """Judge a stored round again with today's code; the record is not changed."""
    from loop import display
    from loop.run import rejudge
    from loop.workspace import find_workspace

    workspace = find_workspace()
    round_ = read_round(round_id)
    judgement = rejudge(workspace, round_)
    if as_json:
        print_json(judgement.document())
        return
    if round_.verdict:
        display.out.print("recorded: ", display.verdict_line(round_.verdict))
    display.out.print("today:    ", display.verdict_line(judgement.verdict))
    same = round_.verdict == judgement.verdict and round_.gates == judgement.gates
    print("the judgement is the same" if same else "the judgement differs; the record keeps the first one")
