"""A noise floor: what sessions of one bundle differ by on this machine, and what that lets a round certify."""

from loop.history import noise_before
from loop.ledger import Ledger, Round
from loop.record import Record
from loop.stats import pool_sigma, sessions_to_certify

EFFECTS_PCT = (1.0, 2.0, 3.0, 5.0, 10.0)
"""The effects that people ask about."""


class Floor(Record):
    """The noise floor of one scope."""

    scope: str
    sigma_pct: float
    """Noise of one session, the prior included."""
    dof: int
    """Degrees of freedom behind it, four of them the prior's."""
    num_sessions: dict[str, int | None]
    """Effect in per cent → sessions that certify it with power 0.8; None where noise is larger than the effect."""


def floors_of(round_: Round, ledger: Ledger) -> tuple[Floor, ...]:
    """Of every scope of the round, from all that is stored for its fingerprint, the round itself included."""
    groups = noise_before(round_, ledger, inclusive=True)
    found = []
    for comparison in round_.comparisons:
        sigma, dof = pool_sigma(groups.get(comparison.scope, []), round_.sigma_prior_pct / 100)
        needed = {f"{effect:g}": sessions_to_certify(effect / 100, sigma, dof) for effect in EFFECTS_PCT}
        found.append(Floor(scope=comparison.scope, sigma_pct=sigma * 100, dof=dof, num_sessions=needed))
    return tuple(found)
