"""What earlier rounds say about noise: sessions that served the same thing and yet differed."""

from loop.compare import OVERALL, equal_sessions
from loop.ledger import Ledger, Round

Groups = dict[str, list[tuple[float, ...]]]
"""Scope → groups of log values; what differs inside a group is noise."""


def noise_before(round_: Round, ledger: Ledger, *, inclusive: bool = False) -> Groups:
    """From the rounds with the same fingerprint that began before `round_`, and from itself if `inclusive`."""
    found: Groups = {}
    for earlier in ledger.read_all():
        if earlier.fingerprint != round_.fingerprint or earlier.verdict is None:
            continue
        itself = earlier.id == round_.id
        if (itself and not inclusive) or (not itself and earlier.created_utc >= round_.created_utc):
            continue
        if not _tells(earlier):
            continue
        identical = earlier.candidate.sha256 == earlier.baseline.sha256
        for scope, groups in equal_sessions(earlier.comparisons, identical=identical).items():
            found.setdefault(scope, []).extend(groups)
    return found


def _tells(earlier: Round) -> bool:
    """Whether its values can be believed: not an invalid round's, but for a calibration: what it saw is the noise."""
    valid = earlier.verdict is not None and earlier.verdict.outcome != "invalid"
    return valid or earlier.purpose == "calibration"


def served_before(round_: Round, ledger: Ledger) -> tuple[float, ...]:
    """What earlier sessions that served the round's baseline came to as a whole, under the same fingerprint."""
    return tuple(
        compared.sessions[session.label]
        for earlier in ledger.read_all()
        if earlier.fingerprint == round_.fingerprint and earlier.created_utc < round_.created_utc and _tells(earlier)
        for compared in earlier.comparisons
        if compared.scope == OVERALL
        for session in earlier.sessions
        if session.bundle_sha256 == round_.baseline.sha256 and session.label in compared.sessions
    )
