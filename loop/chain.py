"""The chain: one line per closed round of a machine, each with the hash of the round and of the line before."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from loop.errors import HardStop
from loop.record import Record, canonical_json, parse, sha256_of_file

NO_LINE = "0" * 64
"""What the first line of a chain follows."""


class ChainLine(Record):
    """One line of `ledger/chain/<machine>.jsonl`: a round that closed on this machine."""

    round: str
    sha256: str
    prev_sha256: str
    """Of the line before; 64 zeros for the first."""


def append_link(path: Path, round_id: str, sha256: str) -> None:
    """Add a closed round to the end of a chain, on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines() if path.exists() else []
    previous = _sha256_line(lines[-1]) if lines else NO_LINE
    link = ChainLine(round=round_id, sha256=sha256, prev_sha256=previous)
    with path.open("ab") as file:
        file.write(canonical_json(link.document()) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def chained_rounds(path: Path) -> set[str]:
    """The rounds that a chain names; none where it does not exist."""
    return {link.round for _, link in _read_chain(path)} if path.exists() else set()


def verify_chains(chains: Path, rounds: Path) -> set[str]:
    """The rounds that all machines' chains name; raises HardStop naming the first broken link."""
    chained: set[str] = set()
    for chain in sorted(chains.glob("*.jsonl")):
        previous = NO_LINE
        for number, (line, link) in enumerate(_read_chain(chain), start=1):
            path = rounds / f"{link.round}.json"
            if link.prev_sha256 != previous:
                raise HardStop(f"{chain}:{number} does not follow the line before it: a line was changed or removed")
            if not path.is_file():
                raise HardStop(f"{path} is missing; {chain}:{number} names it")
            if sha256_of_file(path) != link.sha256:
                raise HardStop(f"{path} was changed after it closed")
            previous = _sha256_line(line)
            chained.add(link.round)
    return chained


def _read_chain(path: Path) -> Iterator[tuple[bytes, ChainLine]]:
    """The lines of a chain, raw and parsed; raises HardStop naming one that cannot be read."""
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            document = json.loads(line)
        except ValueError:
            raise HardStop(f"{path}:{number} cannot be read: the line is torn or was changed") from None
        yield line, parse(document, ChainLine, HardStop, where=f"{path}:{number}")


def _sha256_line(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
