"""A bundle's code must have run: a change that is not in effect is no change, however the numbers came out."""

import re
from typing import ClassVar

from loop.content import PluginModule, Replacement
from loop.elements import Engaged as Proof
from loop.gates import Bracket, Gate, GateResult
from loop.receipts import Receipt
from loop.session import Session
from loop.wording import count


class Engaged(Gate):
    """Looks for proof in every B: of each replaced module, of each plugin, and of each `[[engaged]]`."""

    name: ClassVar[str] = "engaged"
    needs_timing: ClassVar[bool] = False

    def check(self, bracket: Bracket) -> GateResult:
        """What has no proof has no effect; what failed is quoted."""
        content, before = bracket.candidate.content, bracket.baseline.content
        plugins = [item for item in content.plugins if item not in before.plugins]
        replaced = [item for item in content.replaced if item not in before.replaced]
        proofs = [item for item in content.engaged if item not in before.engaged]
        if not (plugins or replaced or proofs):
            return self.passed("the candidate brings no code")
        for session in bracket.arm("B"):
            failed = [receipt for receipt in session.receipts if receipt.status == "failed"]
            if failed:
                return self.refused(_quote(session, failed[0]), reason="no_effect")
            missing = [
                *(f"plugin {item.module}" for item in plugins if not _ran(session, f"plugin:{item.module}")),
                *_unread(session, replaced, [*plugins, *proofs]),
                *(str(proof) for proof in proofs if not _shown(proof, session, bracket)),
            ]
            if missing:
                return self.refused(f"{session.label} shows nothing of {', '.join(missing)}", reason="no_effect")
        shown = count(len(plugins) + len(replaced) + len(proofs), "proof")
        num_processes = len({receipt.pid for s in bracket.arm("B") for receipt in s.receipts})
        return self.passed(f"{shown} found, in {num_processes} of the server's processes" if num_processes else shown)


def _ran(session: Session, name: str) -> bool:
    return any(receipt.name == name and receipt.status == "ran" for receipt in session.receipts)


def _unread(session: Session, replaced: list[Replacement], others: list[PluginModule | Proof]) -> list[str]:
    """Replaced modules that no process loaded; what is no module is read by something else, which must show."""
    silent = [item for item in replaced if not _ran(session, f"file:{item}")]
    return [
        f"{item}" if item.path.endswith(".py") else f"{item}, which is no module: add an [[engaged]]"
        for item in silent
        if item.path.endswith(".py") or not others
    ]


def _shown(proof: Proof, session: Session, bracket: Bracket) -> bool:
    """Whether one declared proof is there."""
    if proof.kind == "receipt":
        return any(re.search(proof.pattern, receipt.name) for receipt in session.receipts if receipt.status == "ran")
    if proof.kind == "server_info":
        return any(re.search(proof.pattern, f"{name}={value}") for name, value in (session.info or {}).items())
    log = bracket.raw / session.log.path
    with log.open(encoding="utf-8", errors="replace") as lines:
        return any(re.search(proof.pattern, line) for line in lines)


def _quote(session: Session, receipt: Receipt) -> str:
    last = receipt.detail.strip().splitlines()[-1:] or ["no reason given"]
    return f"in {session.label}, {receipt.name} failed in process {receipt.process}: {last[0]}"
