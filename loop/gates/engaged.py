"""The candidate's code must have run: its files loaded, its plugins activated, and what it declares itself seen."""

import re
from collections.abc import Iterator
from typing import ClassVar

from loop.elements import Engaged as Declared
from loop.engagement import Receipt, expected_proofs
from loop.errors import InputError
from loop.gates import Bracket, Gate, GateResult
from loop.session import Session
from loop.wording import count

BROKEN = ("failed", "fallback", "elsewhere", "changed")
"""Statuses of receipts that say that something did not run as it should."""
LAST_LINES = 4


class Engaged(Gate):
    """Reads the receipts of every session; no proof is `no_effect`: the baseline was measured under another name."""

    name: ClassVar[str] = "engaged"
    needs_timing: ClassVar[bool] = False

    def check(self, bracket: Bracket) -> GateResult:
        """Every session of B; an A whose own code did not run makes the round invalid."""
        for session in bracket.arm("A"):
            missing = next(_missing(bracket, session), None)
            if missing:
                return self.uninformative(f"{session.label}: {missing}", reason="baseline_not_engaged")
        for session in bracket.arm("B"):
            missing = next(_missing(bracket, session), None)
            if missing:
                return self.refused(f"{session.label}: {missing}", reason="no_effect")
        return self._proven(bracket)

    def _proven(self, bracket: Bracket) -> GateResult:
        content = bracket.candidate.content
        num_proofs = len(expected_proofs(content)) + sum(item.kind != "kernel" for item in content.engaged)
        profiled = [item.pattern for item in content.engaged if item.kind == "kernel"]
        later = f"; kernels {', '.join(profiled)} are not looked for: that needs a profile" if profiled else ""
        if num_proofs:
            return self.passed(f"{count(num_proofs, 'proof')} in every session that the code ran{later}")
        if profiled:
            return self.uninformative(f"nothing proves that the code ran{later}", reason="needs_profile")
        if content.has_code:
            return self.refused(
                "nothing can prove that the code ran: no replaced file is a module; declare an [[engaged]]",
                reason="no_effect",
            )
        return self.passed("no code to prove")


def _missing(bracket: Bracket, session: Session) -> Iterator[str]:
    """What is not proven of a session, one sentence each."""
    content = (bracket.baseline if session.arm == "A" else bracket.candidate).content
    for receipt in session.receipts:
        if receipt.status in BROKEN:
            yield f"{receipt.name} {receipt.status} in {receipt.role}{_quoted(receipt)}"
    for proof in expected_proofs(content):
        if not any(item.name == proof.name and item.status == proof.status for item in session.receipts):
            yield f"{proof.what} in any process"
    for declared in content.engaged:
        if declared.kind != "kernel" and not _seen(declared, bracket, session):
            yield f"no {declared.kind} {declared.pattern!r} was seen"


def _seen(declared: Declared, bracket: Bracket, session: Session) -> bool:
    if declared.kind == "receipt":
        return any(re.search(declared.pattern, receipt.name) for receipt in session.receipts)
    if declared.kind == "server_info":
        key, _, value = declared.pattern.partition("=")
        return session.info is not None and key in session.info and str(session.info[key]) == value
    path = bracket.raw / session.log.path
    if not path.is_file():
        raise InputError(f"{path} is missing: raw data stays on the machine that measured it")
    with path.open(encoding="utf-8", errors="replace") as lines:
        return any(re.search(declared.pattern, line) for line in lines)


def _quoted(receipt: Receipt) -> str:
    """The end of what a receipt says, on one line."""
    lines = [line.strip() for line in receipt.detail.splitlines() if line.strip()]
    return f": {' | '.join(lines[-LAST_LINES:])}" if lines else ""
