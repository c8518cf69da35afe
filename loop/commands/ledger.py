"""`loop ledger`: look at the rounds."""

from typing import TYPE_CHECKING, Any

from loop.commands import AsJson, RoundId, find_ledger, print_json, read_round

if TYPE_CHECKING:
    from loop.ledger import Round


def list_rounds(as_json: AsJson = False) -> None:
    """List every round, one line each."""
    from loop import display

    rounds = find_ledger().read_all()
    if as_json:
        print_json([_line_of(round_) for round_ in rounds])
        return
    display.show_rounds(rounds)


def show(round_id: RoundId, as_json: AsJson = False) -> None:
    """Show one round."""
    round_ = read_round(round_id)
    if as_json:
        print_json(round_.document())
        return
    from loop import display

    print(f"{round_.id}: {round_.candidate.bundle} against {round_.baseline.bundle}, {round_.created_utc}")
    display.show_round(round_)


def verify(as_json: AsJson = False) -> None:
    """Prove that no closed round was changed, and name the first broken link."""
    from loop.wording import count

    num_rounds = find_ledger().verify()
    print_json({"num_rounds": num_rounds}) if as_json else print(f"{count(num_rounds, 'round')} chained, none changed")


def _line_of(round_: "Round") -> dict[str, Any]:
    overall = round_.comparisons[-1] if round_.comparisons else None
    return {
        "id": round_.id,
        "status": round_.status,
        "candidate": round_.candidate.bundle,
        "baseline": round_.baseline.bundle,
        "suite": round_.suite.id,
        "outcome": round_.verdict.outcome if round_.verdict else None,
        "reason": round_.verdict.reason if round_.verdict else round_.failure.kind if round_.failure else None,
        "effect_pct": overall.effect_pct if overall else None,
        "score": round_.score.score if round_.score else None,
    }
