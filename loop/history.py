"""What earlier rounds say about noise: the A/A pairs that every round brings for free."""

from loop.compare import pair_differences
from loop.ledger import Ledger, Round


def pairs_like(round_: Round, ledger: Ledger) -> dict[str, tuple[float, ...]]:
    """Scope → log differences of first and last A of earlier rounds with the same fingerprint.

    A round that is invalid brings none, except a calibration: what it saw is the noise.
    """
    found: dict[str, list[float]] = {}
    for earlier in ledger.read_all():
        if earlier.fingerprint != round_.fingerprint or earlier.id == round_.id or earlier.verdict is None:
            continue
        if earlier.created_utc >= round_.created_utc:
            continue
        if earlier.verdict.outcome == "invalid" and earlier.purpose != "calibration":
            continue
        for scope, difference in pair_differences(earlier.comparisons).items():
            found.setdefault(scope, []).append(difference)
    return {scope: tuple(differences) for scope, differences in found.items()}
