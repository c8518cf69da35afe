"""Engagement: what the processes of a server wrote about the bundle's code, and what its content lets one expect."""

import json
from collections.abc import Iterator
from pathlib import Path

from loop.content import Content
from loop.record import Record

MAX_RECEIPTS = 500
MAX_LINE_BYTES = 1 << 16


class Receipt(Record):
    """The same line of one or more processes of a server."""

    name: str
    """`overlay:package/path`, `plugin:module`, `kernel:name`, `model:hash`, or what a plugin calls its own."""
    status: str
    """`loaded`, `activated`, `applied`, `fired`: it ran. `failed`, `fallback`, `elsewhere`, `changed`: it did not."""
    role: str
    """What the processes were spawned to run, or `main`."""
    num_processes: int
    detail: str = ""
    """Of the first one: a path, a hash, the end of a traceback."""


class Proof(Record):
    """A receipt that a bundle's content must leave in every session."""

    name: str
    status: str
    what: str
    """For people."""


def read_receipts(path: Path) -> tuple[Receipt, ...]:
    """The receipts in a file, equal ones counted, in order of their first; damaged lines are passed over.

    The candidate's own code may write what it likes: what is kept of it is bounded.
    """
    seen: dict[tuple[str, str, str], tuple[set[int], str]] = {}
    for pid, name, status, role, detail in _lines(path):
        key = (name, status, role)
        if key not in seen and len(seen) < MAX_RECEIPTS:
            seen[key] = (set(), detail)
        if key in seen:
            seen[key][0].add(pid)
    return tuple(
        Receipt(name=name, status=status, role=role, num_processes=len(pids), detail=detail)
        for (name, status, role), (pids, detail) in seen.items()
    )


def expected_proofs(content: Content) -> tuple[Proof, ...]:
    """What every server of this content must have written. Files that are no modules leave no receipt."""
    return (
        *(
            Proof(name=f"overlay:{item.name}", status="loaded", what=f"{item.name} was not loaded")
            for item in content.replaced
            if item.importable
        ),
        *(
            Proof(name=f"plugin:{item.module}", status="activated", what=f"the plugin {item.module} was not activated")
            for item in content.plugins
        ),
        *(
            Proof(name=f"kernel:{item.name}", status="activated", what=f"the kernel {item.name} was not activated")
            for item in content.kernels
        ),
        *(
            Proof(
                name=f"model:{item.sha256[:16]}",
                status="applied",
                what=f"the model transform {item.sha256[:16]} was not applied",
            )
            for item in content.transforms
        ),
    )


def _lines(path: Path) -> Iterator[tuple[int, str, str, str, str]]:
    if not path.is_file():
        return
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                item = json.loads(line)
                name, status, role, detail = (str(item[key])[:2000] for key in ("name", "status", "role", "detail"))
                yield int(item["pid"]), name, status, role, detail
            except (ValueError, TypeError, KeyError):
                continue
