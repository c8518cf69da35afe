"""A round: one experiment from plan to verdict, and the ledger that keeps every one of them."""

import json
import os
import secrets
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
from loop.chain import append_link, chained_rounds, verify_chains
from loop.compare import Comparison
from loop.devices import Peaks
from loop.durable import write_atomically
from loop.environment import Environment
from loop.errors import HardStop, InputError, UnfitError
from loop.gates import GateResult, Purpose
from loop.heldback import Heldback
from loop.host import Host, Revision, machine_name
from loop.judge import Verdict
from loop.profiles import Profiled
from loop.record import Record, canonical_json, parse, sha256_of_file
from loop.score import Score
from loop.session import Session
from loop.terms import Terms
from loop.weights import Weights

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
    weights: Weights | None = None
    """What bounds its speed; None where its files do not tell."""


class EngineRef(Record):
    """The engine a round drove."""

    name: str
    version: str
    python: str


class Failure(Record):
    """Why a round ended without its protocol."""

    kind: str
    """`interrupted` by a person, `killed`, `environment` (the machine is unfit), or `internal`."""
    message: str


class Round(Record):
    """`ledger/rounds/<id>.json`. Missing is null, never 0; failed attempts stay."""

    schema_: Literal["loop.round/1"] = Field(default="loop.round/1", alias="schema")
    id: str
    status: Literal["running", "closed"]
    purpose: Purpose = "candidate"
    confirms: str | None = None
    """The round whose win a confirmation measures afresh."""
    created_utc: str
    closed_utc: str | None = None
    argv: tuple[str, ...]
    revision: Revision
    host: Host
    fingerprint: str
    """What must be equal for rounds to be comparable: host, model, suite, engine, client."""
    engine: EngineRef
    model: ModelRef
    peaks: Peaks | None = None
    """The device at its best; None where nobody knows it."""
    suite: SuiteRef
    client: str
    """The version of what the client measures."""
    protocol: str
    sigma_prior_pct: float
    hypothesis: str
    expect: Expect | None
    baseline: Effective
    candidate: Effective
    secret_sha256: str
    """Commitment to the secret behind salts and canaries."""
    secret_hex: str | None = None
    """Revealed when the round closes."""
    heldback: Heldback | None = None
    sessions: tuple[Session, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    gates: tuple[GateResult, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    score: Score | None = None
    verdict: Verdict | None = None
    profiled: Profiled | None = None
    """Profiles of A and B; None unless the round was asked for them."""
    failure: Failure | None = None
    wall_s: float | None = None

    @model_validator(mode="after")
    def _states_are_possible(self) -> Self:
        if self.status == "closed" and (self.verdict is None) == (self.failure is None):
            raise ValueError("a closed round has a verdict or a failure")
        told = self.secret_hex or (self.heldback and self.heldback.seed_hex)
        if self.status == "running" and (self.verdict or told or self.closed_utc):
            raise ValueError("a running round has no verdict, no closing time, and keeps its secrets")
        return self

    @property
    def terms(self) -> Terms:
        """What must be equal for another round to be comparable."""
        environment = Environment(host=self.host, model_sha256=self.model.sha256, engine_version=self.engine.version)
        return Terms(
            environment=environment, suite_sha256=self.suite.sha256, engine=self.engine.name, client=self.client
        )

    @property
    def promotable(self) -> bool:
        """Whether the verdict alone allows promotion. A calibration that finds A better than A is noise."""
        won = self.verdict is not None and self.verdict.outcome == "improved" and not self.verdict.refused_by
        return won and self.purpose != "calibration"


class Ledger:
    """The rounds in one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rounds = root / "rounds"
        self.raw = root / "raw"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger: one round at a time on one machine. The kernel drops the lock when its holder dies.

        Raises UnfitError if it is held or cannot be written, HardStop if a stored round was changed.
        """
        holder = self.root / ".lock-holder.json"
        lock = FileLock(self.root / ".lock")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
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
            self._heal_chain()
            self.verify()  # noise is learnt from the ledger: a round must not be judged by one that was edited
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
        if path.exists() and self._is_closed(round_.id):
            raise HardStop(f"{path} is closed: a closed round is never written again")
        text = json.dumps(round_.document(), indent=1, ensure_ascii=False, allow_nan=False, sort_keys=False)
        write_atomically(path, text.encode() + b"\n")
        if round_.status == "closed":
            append_link(self._chain, round_.id, sha256_of_file(path))
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
        return [self.read(round_id) for round_id in self.ids() if self._status(round_id) == "running"]

    def verify(self) -> int:
        """The number of chained rounds on all machines; raises HardStop naming the first broken link."""
        chained = verify_chains(self.root / "chain", self.rounds)
        loose = [round_id for round_id in self.ids() if round_id not in chained and self._is_closed(round_id)]
        if loose:
            raise HardStop(f"{self.rounds / loose[0]}.json is closed and no chain names it: a line was removed")
        return len(chained)

    def _is_closed(self, round_id: str) -> bool:
        return self._status(round_id) == "closed"

    def _status(self, round_id: str) -> str:
        """What a stored round says it is; raises UnfitError naming a file that is no round."""
        path = self.rounds / f"{round_id}.json"
        try:
            return str(json.loads(path.read_bytes())["status"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UnfitError(
                f"{path} is not a round: {type(problem).__name__}: {problem}",
                next="restore it from git, or move it away",
            ) from None

    def _heal_chain(self) -> None:
        """Chain a round of this machine whose process was killed between closing and chaining it."""
        for round_id in self.ids()[-1:]:
            if not self._is_closed(round_id) or round_id in chained_rounds(self._chain):
                continue
            if self.read(round_id).host.machine == machine_name():
                append_link(self._chain, round_id, sha256_of_file(self.rounds / f"{round_id}.json"))

    @property
    def _chain(self) -> Path:
        return self.root / "chain" / f"{machine_name()}.jsonl"


def now_utc() -> str:
    """RFC 3339 with a `Z`, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        name = psutil.Process(holder["pid"]).name()
    except (OSError, ValueError, KeyError, psutil.Error):
        return "its holder is unknown"
    return f"pid {holder['pid']} ({name}) since {holder['since_utc']}"
