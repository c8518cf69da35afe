"""A round: one experiment from plan to verdict, and the ledger that keeps every one of them."""

import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

import psutil
from filelock import FileLock, Timeout
from pydantic import Field, model_validator

from loop.bundles import Effective, Expect
from loop.caveats import Caveat
from loop.compare import Comparison
from loop.errors import HardStop, InputError, UnfitError
from loop.gates import GateResult
from loop.host import Host, Revision, machine_name
from loop.judge import Verdict
from loop.record import Record, canonical_json, parse, sha256_of_file
from loop.score import Score
from loop.session import Session

SCHEMA = "loop.round/1"
# History of the round schema. A change that old readers cannot read raises the number and adds an upgrade.
# 1  2026-11  first


class SuiteRef(Record):
    """The suite a round used."""

    id: str
    sha256: str


class ModelRef(Record):
    """The model a round served."""

    path: str
    sha256: str


class EngineRef(Record):
    """The engine a round drove."""

    name: str
    version: str
    python: str


class Failure(Record):
    """Why a round ended without its protocol."""

    kind: str
    """`interrupted` by a person, `killed`, or `internal`."""
    message: str


class Round(Record):
    """`ledger/rounds/<id>.json`. Missing is null, never 0; failed attempts stay."""

    schema_: Literal["loop.round/1"] = Field(default="loop.round/1", alias="schema")
    id: str
    status: Literal["running", "closed"]
    purpose: Literal["candidate", "calibration", "confirmation"] = "candidate"
    created_utc: str
    closed_utc: str | None = None
    argv: tuple[str, ...]
    revision: Revision
    host: Host
    fingerprint: str
    """What must be equal for rounds to be comparable: host, model, suite, engine, client."""
    engine: EngineRef
    model: ModelRef
    suite: SuiteRef
    protocol: str
    sigma_prior_pct: float
    hypothesis: str
    expect: Expect | None
    baseline: Effective
    candidate: Effective
    secret_sha256: str
    """Commitment to the secret behind the salts."""
    secret_hex: str | None = None
    """Revealed when the round closes."""
    sessions: tuple[Session, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    gates: tuple[GateResult, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    score: Score | None = None
    verdict: Verdict | None = None
    failure: Failure | None = None
    wall_s: float | None = None

    @model_validator(mode="after")
    def _states_are_possible(self) -> Self:
        if self.status == "closed" and (self.verdict is None) == (self.failure is None):
            raise ValueError("a closed round has a verdict or a failure")
        if self.status == "running" and (self.verdict or self.secret_hex or self.closed_utc):
            raise ValueError("a running round has no verdict, no closing time, and keeps its secret")
        return self

    @property
    def promotable(self) -> bool:
        """Whether the verdict alone allows promotion."""
        return self.verdict is not None and self.verdict.outcome == "improved" and not self.verdict.refused_by


class ChainLine(Record):
    """One line of `ledger/chain/<machine>.jsonl`: a round that closed on this machine."""

    round: str
    sha256: str
    prev_sha256: str
    """Of the line before; 64 zeros for the first."""


class Ledger:
    """The rounds in one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rounds = root / "rounds"
        self.raw = root / "raw"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger: one round at a time on one machine. The kernel drops the lock when its holder dies."""
        self.root.mkdir(parents=True, exist_ok=True)
        holder = self.root / ".lock-holder.json"
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UnfitError(
                f"another round is running here ({_holder(holder)}): two rounds would measure each other",
                next="wait for it, or end it",
            ) from None
        except OSError as problem:
            raise UnfitError(f"the ledger {self.root} cannot be written: {problem}") from None
        try:
            write_atomically(holder, canonical_json({"pid": os.getpid(), "since_utc": now_utc()}))
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    def new_id(self) -> str:
        """A number for people and a suffix, so that the ledgers of two machines merge by copying files."""
        numbers = [int(path.stem[1:7]) for path in self.rounds.glob("R*.json") if path.stem[1:7].isdigit()]
        return f"R{max(numbers, default=0) + 1:06d}-{secrets.token_hex(2)}"

    def raw_of(self, round_id: str) -> Path:
        """Where the raw data of a round is."""
        return self.raw / round_id

    def write(self, round_: Round) -> Path:
        """Store a round atomically; a closed one is chained, and never written again."""
        path = self.rounds / f"{round_.id}.json"
        if path.exists() and json.loads(path.read_bytes()).get("status") == "closed":
            raise HardStop(f"{path} is closed: a closed round is never written again")
        text = json.dumps(round_.document(), indent=1, ensure_ascii=False, allow_nan=False, sort_keys=False)
        write_atomically(path, text.encode() + b"\n")
        if round_.status == "closed":
            self._chain(round_.id, sha256_of_file(path))
        return path

    def ids(self) -> list[str]:
        """Every round's id, oldest first."""
        return sorted(path.stem for path in self.rounds.glob("R*.json"))

    def find(self, prefix: str) -> str:
        """The id that starts with `prefix` (`R12`, `12` and `R000012-7f3a` all work); raises InputError."""
        ids = self.ids()
        number = prefix.removeprefix("R")
        found = [i for i in ids if i == prefix] or [
            i for i in ids if i.startswith(prefix) or (number.isdigit() and int(i[1:7]) == int(number))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"{prefix!r} names {len(found)} rounds: {', '.join(found[:8])}")
        raise InputError(
            f"no round {prefix!r} in {self.rounds}; {f'the last is {ids[-1]}' if ids else 'there is none yet'}",
            next="`loop ledger list`",
        )

    def read(self, round_id: str) -> Round:
        """One stored round; raises InputError naming what is wrong with it."""
        path = self.rounds / f"{round_id}.json"
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as problem:
            raise InputError(f"{path} cannot be read: {problem}", next="`loop ledger verify`") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != SCHEMA:
            raise InputError(f"{path} has schema {schema!r}; this loop reads {SCHEMA!r}", next="update loop")
        return parse(document, Round, InputError, where=str(path))

    def read_all(self) -> list[Round]:
        """Every round, oldest first."""
        return [self.read(round_id) for round_id in self.ids()]

    def killed(self) -> list[Round]:
        """Rounds that say they are running. Only the lock's holder may believe that they are not."""
        texts = {i: (self.rounds / f"{i}.json").read_bytes() for i in self.ids()}
        return [self.read(i) for i, text in texts.items() if json.loads(text).get("status") == "running"]

    def verify(self) -> int:
        """The number of chained rounds on all machines; raises HardStop naming the first broken link."""
        count = 0
        for chain in sorted((self.root / "chain").glob("*.jsonl")):
            previous = "0" * 64
            for number, line in enumerate(chain.read_bytes().splitlines(), start=1):
                link = parse(json.loads(line), ChainLine, InputError, where=f"{chain}:{number}")
                path = self.rounds / f"{link.round}.json"
                if link.prev_sha256 != previous:
                    raise HardStop(
                        f"{chain}:{number} does not follow the line before it: a line was changed or removed"
                    )
                if not path.is_file():
                    raise HardStop(f"{path} is missing; {chain}:{number} names it")
                if sha256_of_file(path) != link.sha256:
                    raise HardStop(f"{path} was changed after it closed")
                previous = _sha256_line(line)
                count += 1
        return count

    def _chain(self, round_id: str, sha256: str) -> None:
        path = self.root / "chain" / f"{machine_name()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        previous = _sha256_line(lines[-1]) if lines else "0" * 64
        link = ChainLine(round=round_id, sha256=sha256, prev_sha256=previous)
        with path.open("ab") as file:
            file.write(canonical_json(link.document()) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Temp file beside it, fsync, rename, fsync of the directory: after a crash there is the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def now_utc() -> str:
    """RFC 3339 with a `Z`, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sha256_line(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        name = psutil.Process(holder["pid"]).name()
    except (OSError, ValueError, KeyError, psutil.Error):
        return "its holder is unknown"
    return f"pid {holder['pid']} ({name}) since {holder['since_utc']}"
