"""Nothing of an earlier round is left, and no other round is running."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil

from loop.checks import Check, Finding, Setup, Stage
from loop.host import MARK, marked_processes, port_open
from loop.ledger import Ledger


class Leftovers(Check):
    """By the mark that every process of a server inherits, and by the port of production."""

    stage: ClassVar[Stage] = "machine"

    port: int = 30000
    """Where production listens by convention."""

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Marked processes by round, then the port."""
        found: dict[str, list[int]] = defaultdict(list)
        for process in marked_processes(""):
            found[_round_of(process.pid)].append(process.pid)
        for round_id, pids in found.items():
            listed = " ".join(map(str, pids))
            if round_id in setup.ledger.ids() and not _is_held(setup.ledger):
                yield self.unfit(
                    f"{round_id} is not running, but left servers alive: pid {listed}", f"kill -9 {listed}"
                )
            else:
                yield self.warn(
                    f"servers of {round_id} are alive: pid {listed}; two rounds would measure each other",
                    "wait until that round is over",
                )
        if port_open(self.port):
            yield self.warn(
                f"something listens on port {self.port}, where production would",
                "end it, or serve on another port; `loop run` chooses a free one",
            )
        elif not found:
            yield self.ok(f"no process of a round is alive, port {self.port} is free")


def _is_held(ledger: Ledger) -> bool:
    """Whether a round is running in this workspace: the lock's holder is alive."""
    try:
        return psutil.pid_exists(json.loads((ledger.root / ".lock-holder.json").read_bytes())["pid"])
    except (OSError, ValueError, KeyError):
        return False


def _round_of(pid: int) -> str:
    """The round in a process's mark."""
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return "a round"
    mark = next((item for item in items if item.startswith(f"{MARK}=".encode())), b"")
    return mark.partition(b"=")[2].decode(errors="replace").partition("/")[0] or "a round"
