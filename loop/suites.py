"""A suite: a fixed set of workloads, correctness prompts, gates and the objective, content-hashed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from loop import prompts
from loop.errors import SuiteError
from loop.plugins import closest
from loop.prompts import Prompt
from loop.record import Record, read_toml, sha256_of, sha256_of_file

SUITE_FILE = "suite.toml"
Kind = Literal["sequential", "concurrent", "offline", "open_loop"]
OBJECTIVES: Mapping[str, str] = {
    "sequential": "e2e",
    "concurrent": "makespan",
    "offline": "throughput",
    "open_loop": "goodput",
}
"""What counts as better for each kind of traffic, by metric plugin."""


class PromptFile(Record):
    """Stored prompts, by path relative to the suite and by content."""

    file: str
    sha256: str


class Slo(Record):
    """What one user may expect of one request; what is left out is not asked for."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    """To the first token, from when the request was due."""
    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    """Per output token after the first read."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> "Slo":
        if self.ttft_ms is None and self.tpot_ms is None:
            raise ValueError("an SLO bounds ttft_ms, tpot_ms or both")
        return self


class Workload(Record):
    """`[[workload]]`: the requests of one traffic shape and how they are sent."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    kind: Kind
    """`sequential`: one at a time. `concurrent`: exactly `concurrency` in flight. `offline`: all at once. `open_loop`:
    at `rate_per_s`, whatever became of the requests before."""
    concurrency: Annotated[int, Field(ge=1)] = 1
    """For `open_loop`, how many to expect in flight: so many warm up together and have their connections beforehand."""
    passes: Annotated[int, Field(ge=1)] = 3
    """Timed passes in each session, every one with other salts."""
    prompts: PromptFile
    rate_per_s: Annotated[float, Field(gt=0)] | None = None
    """`open_loop`: requests per second."""
    arrival: Literal["constant", "poisson"] | None = None
    """`open_loop`: `constant` (if left out), or `poisson`: drawn from `seed`, and stretched to exactly `rate_per_s`."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """`open_loop`: of the arrivals; every pass has its own, the same in every session. 0 if left out."""
    slo: Slo | None = None
    """`open_loop`: which requests count as good."""

    @model_validator(mode="after")
    def _concurrency_fits(self) -> "Workload":
        if self.kind == "sequential" and self.concurrency != 1:
            raise ValueError("a sequential workload has concurrency 1")
        return self

    @model_validator(mode="after")
    def _open_loop_is_complete(self) -> "Workload":
        if self.kind == "open_loop":
            if self.rate_per_s is None or self.slo is None:
                raise ValueError("an open_loop workload needs rate_per_s and slo")
            return self
        unused = [name for name in ("rate_per_s", "arrival", "seed", "slo") if getattr(self, name) is not None]
        if unused:
            raise ValueError(f"only an open_loop workload has {', '.join(unused)}")
        return self

    @property
    def objective(self) -> str:
        """The metric that is judged."""
        return OBJECTIVES[self.kind]

    @property
    def objective_settings(self) -> dict[str, float]:
        """The settings of that metric."""
        return {} if self.slo is None else self.slo.model_dump(exclude_none=True)

    @property
    def score_class(self) -> str:
        """The class of the score: `sequential` or `concurrent`."""
        return "sequential" if self.kind == "sequential" else "concurrent"


class Warmup(Record):
    """`[warmup]`: traffic before anything is timed, at full concurrency, with prompts of its own."""

    agree_pct: float = 2.0
    """Stop when the last three blocks' tokens per second agree within this."""
    max_blocks: Annotated[int, Field(ge=3)] = 10
    """Stop here even if they do not; the comparison then carries a caveat."""
    max_output_tokens: Annotated[int, Field(ge=1)] = 128
    """Longer outputs warm nothing that shorter ones do not."""


class Suite(Record):
    """`suite.toml`."""

    schema_: Literal["loop.suite/1"] = Field(alias="schema")
    title: str
    dialect: Literal["generate", "completions", "chat"] | None = None
    """How all traffic speaks to the server; left out, as its engine prefers (SGLang: `generate`)."""
    warmup: Warmup = Warmup()
    check: PromptFile
    """Correctness prompts, sent one at a time at temperature 0."""
    workload: tuple[Workload, ...] = Field(min_length=1)
    gates: dict[str, dict[str, Any]] = {}
    """Gate plugin → settings that differ from its defaults."""

    @model_validator(mode="after")
    def _ids_differ(self) -> "Suite":
        ids = [workload.id for workload in self.workload]
        if len(set(ids)) != len(ids):
            raise ValueError("two workloads have the same id")
        return self

    def digest(self) -> str:
        """The suite's identity. The title is not part of it; every stored prompt is, through its hash.

        Nor is what it leaves out: a setting that is added to `loop` changes no suite that does not use it.
        """
        return sha256_of(self.model_dump(mode="json", exclude={"title"}, exclude_none=True))


class LoadedSuite(Record):
    """A suite with its prompts."""

    id: str
    suite: Suite
    sha256: str
    check: tuple[Prompt, ...]
    traffic: dict[str, tuple[Prompt, ...]]
    """Workload id → prompts in sending order."""

    def workload(self, workload_id: str) -> Workload:
        """The workload called `workload_id`."""
        return next(w for w in self.suite.workload if w.id == workload_id)


def suite_ids(workloads: Path) -> list[str]:
    """The suites in `workloads`, sorted."""
    return sorted(path.parent.name for path in workloads.glob(f"*/{SUITE_FILE}"))


def load_suite(workloads: Path, suite_id: str) -> LoadedSuite:
    """The suite with every prompt file proven against its hash; raises SuiteError otherwise."""
    known = suite_ids(workloads)
    if suite_id not in known:
        raise SuiteError(
            f"no suite called {suite_id!r} in {workloads}; known: {', '.join(known)}{closest(suite_id, known)}"
        )
    directory = workloads / suite_id
    suite = read_toml(directory / SUITE_FILE, Suite, SuiteError)
    return LoadedSuite(
        id=suite_id,
        suite=suite,
        sha256=suite.digest(),
        check=_read_prompts(directory, suite.check),
        traffic={workload.id: _read_prompts(directory, workload.prompts) for workload in suite.workload},
    )


def load_measured_suite(workloads: Path, suite_id: str, sha256: str) -> LoadedSuite:
    """The suite that a round was measured with; raises SuiteError if the workspace has another one by now."""
    suite = load_suite(workloads, suite_id)
    if suite.sha256 != sha256:
        raise SuiteError(
            f"the round was measured with suite {suite_id} {sha256[:16]}; the workspace has {suite.sha256[:16]}",
            next="restore the suite's files from the commit that the round names, or measure again",
        )
    return suite


def _read_prompts(directory: Path, stored: PromptFile) -> tuple[Prompt, ...]:
    path = directory / stored.file
    if not path.is_file():
        raise SuiteError(
            f"{path} is missing",
            next="restore it from git; `python -m loop.prompts` writes the prompts of smoke and quadrants again",
        )
    found = sha256_of_file(path)
    if found != stored.sha256:
        raise SuiteError(
            f"{path} hashes to {found}, the suite says {stored.sha256}: the workload was edited",
            next="restore the file, or give the changed suite a name of its own and its new hash",
        )
    return prompts.read(path)
