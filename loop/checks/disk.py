"""There is room for records, and they can be written."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage, gib
from loop.host import MIN_FREE_BYTES
from loop.launch import runtime_dir


class Disk(Check):
    """The ledger's raw data and the launcher's runtime directory."""

    stage: ClassVar[Stage] = "machine"

    min_free_bytes: int = 2 << 30
    """Less is a reason to make room: a round of the larger suite writes tens of megabytes."""

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Free space and the right to write, of both."""
        raw, runtime = setup.ledger.raw, runtime_dir(dict(os.environ))
        places = {raw: "restore the right to write there", runtime: "set LOOP_RUNTIME_DIR to a writable directory"}
        for place, action in places.items():
            at = _existing(place)
            if not (at.is_dir() and os.access(at, os.W_OK | os.X_OK)):
                yield self.unfit(f"{place} cannot be written", action)
                continue
            free = shutil.disk_usage(at).free
            text = f"{gib(free)} free for {place}"
            if free < MIN_FREE_BYTES:
                yield self.unfit(f"{text}: no round starts", "make room: old rounds' raw data may be moved away")
            elif free < self.min_free_bytes:
                yield self.warn(text, "make room: old rounds' raw data may be moved away")
            else:
                yield self.ok(text)


def _existing(path: Path) -> Path:
    """The nearest directory at or above `path` that exists."""
    return next(p for p in (path, *path.parents) if p.exists())
