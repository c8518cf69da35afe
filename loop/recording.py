"""A round while it runs: on disk before its first server starts, after every session, and closed whatever happens."""

import hashlib
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from loop.compare import Comparison
from loop.errors import UnfitError
from loop.judge import Judgement
from loop.ledger import Failure, Ledger, Round, now_utc
from loop.profiles import Profiled
from loop.session import Session


class Recording:
    """A context manager around a running round. Leaving it closes the round, also on an exception."""

    def __init__(self, ledger: Ledger, round_: Round, secret_hex: str, heldback_hex: str | None = None) -> None:
        self.ledger = ledger
        self.round = round_
        self.secret_hex = secret_hex
        self.heldback_hex = heldback_hex
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self.ledger.write(self.round)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = None
        if isinstance(value, KeyboardInterrupt):
            failure = Failure(kind="interrupted", message="interrupted by a person")
        elif isinstance(value, UnfitError):
            failure = Failure(kind="environment", message=str(value)[:2000])
        elif value is not None:
            failure = Failure(kind="internal", message=f"{type(value).__name__}: {value}"[:2000])
        self._replace(
            status="closed",
            closed_utc=now_utc(),
            secret_hex=self.secret_hex,
            heldback=self.round.heldback and self.round.heldback.model_copy(update={"seed_hex": self.heldback_hex}),
            failure=failure,
            verdict=None if failure else self.round.verdict,
            wall_s=round(time.monotonic() - self._started, 1),
        )

    def add(self, session: Session) -> None:
        """One more session is done."""
        self._replace(sessions=(*self.round.sessions, session))

    def judge(self, comparisons: Sequence[Comparison], judgement: Judgement) -> None:
        """What the sessions mean. Written when the round closes."""
        self.round = self.round.model_copy(
            update={
                "comparisons": tuple(comparisons),
                "gates": judgement.gates,
                "caveats": judgement.caveats,
                "score": judgement.score,
                "verdict": judgement.verdict,
            }
        )

    def attach(self, profiled: Profiled) -> None:
        """What was found after the sessions. Written when the round closes."""
        self.round = self.round.model_copy(update={"profiled": profiled})

    def _replace(self, **changes: object) -> None:
        # Validated, not copied: an impossible state must not reach the disk.
        self.round = Round.model_validate({**dict(self.round), **changes})
        self.ledger.write(self.round)


def close_killed(round_: Round) -> Round:
    """A round whose process was killed, closed with the sessions it has. Its secret died with it."""
    failure = Failure(kind="killed", message="the process that ran the round was killed")
    return Round.model_validate({**dict(round_), "status": "closed", "closed_utc": now_utc(), "failure": failure})


def commitment(secret_hex: str) -> str:
    """What a running round shows of its secret."""
    return hashlib.sha256(bytes.fromhex(secret_hex)).hexdigest()
