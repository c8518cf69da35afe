"""`loop confirm`: a win measured afresh."""

from loop.commands import AsJson, Port, Protocol, RoundId, read_round, run_planned, show_outcome


def main(round_id: RoundId, protocol: Protocol = "aba", port: Port = None, as_json: AsJson = False) -> None:
    """Measure a round's win afresh: of many tries the best looks better than it is, so only this one may ship."""
    from loop.promotion import plan_confirmation
    from loop.workspace import find_workspace

    planned = plan_confirmation(find_workspace(), read_round(round_id), protocol=protocol, port=port)
    show_outcome(planned, run_planned(planned, as_json=as_json), as_json=as_json)
