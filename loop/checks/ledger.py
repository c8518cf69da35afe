"""The ledger is whole: no closed round was changed."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage
from loop.wording import count


class LedgerCheck(Check):
    """What noise is believed and what is shipped both stand on it."""

    stage: ClassVar[Stage] = "workspace"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Every chained round is hashed again."""
        yield self.ok(f"{count(setup.ledger.verify(), 'round')} chained, none changed")
