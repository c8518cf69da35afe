"""Receipts: what a bundle's code wrote while it ran in the server's processes (`loop/witness.py`)."""

import json
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from loop.record import Record

MAX_KEPT = 200
"""Of one session: each is written once per process."""


class Receipt(Record):
    """One process's word that something ran, or failed."""

    pid: int
    process: str
    """As multiprocessing calls it."""
    name: str
    """`plugin:<module>`, `file:<package>/<path>`, or what a plugin calls `fired` with."""
    status: Literal["ran", "failed"]
    detail: str = ""


def read_receipts(path: Path) -> tuple[Receipt, ...]:
    """The receipts in a file, which a process that was killed may have left with half a line; none if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ()
    found = []
    for line in lines:
        try:
            found.append(Receipt.model_validate(json.loads(line)))
        except (ValueError, ValidationError):
            continue  # half a line is no proof
    return tuple(dict.fromkeys(found))[:MAX_KEPT]
