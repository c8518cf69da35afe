"""A plan: everything a round needs, loaded and validated before anything starts."""

from pathlib import Path

from loop import engines, launch, metrics, plugins
from loop.bundles import EFFECTIVE_FILE, Bundle, Effective, Expect, check_target, flatten, read_effective
from loop.engines import Engine
from loop.errors import InputError
from loop.host import Host, hash_model, read_host, refuse_occupied
from loop.judge import load_gates
from loop.record import Record, sha256_of
from loop.schedule import SessionPlan, plan_sessions
from loop.suites import LoadedSuite, load_suite
from loop.traffic import check_requests, timed_requests
from loop.workspace import Workspace

CLIENT = "loop.client/1"
"""Part of the fingerprint: rounds measured by different clients are not comparable."""

START_S, STOP_S, SESSION_REST_S = 38.0, 3.0, 1.0
"""Predictions before this workspace has measured anything, from SGLang with a tiny model on two cores."""
TOKENS_PER_S_PER_STREAM = 120.0


class Options(Record):
    """What a person chose on the command line."""

    suite: str | None = None
    model: str | None = None
    baseline: str = "shipped"
    """`shipped`, `original` or a bundle id."""
    engine: str | None = None
    protocol: str = "aba"
    port: int | None = None
    """Where servers listen; None lets every session choose a free port."""


class Plan(Record):
    """A round that can start."""

    workspace: Workspace
    engine: Engine
    engine_version: str
    model: Path
    model_sha256: str
    suite: LoadedSuite
    host: Host
    bundle: Bundle
    baseline: Effective
    candidate: Effective
    protocol: str
    sessions: tuple[SessionPlan, ...]
    port: int | None

    @property
    def fingerprint(self) -> str:
        """What must be equal for two rounds to be comparable."""
        return sha256_of(
            {
                "host": self.host.fingerprint(),
                "model": self.model_sha256,
                "suite": self.suite.sha256,
                "engine": [self.engine.name, self.engine_version],
                "client": CLIENT,
            }
        )

    @property
    def num_requests(self) -> int:
        """Requests of all steps of all sessions, warm-up apart."""
        sizes = {workload: len(prompts) for workload, prompts in self.suite.traffic.items()}
        return sum(
            len(self.suite.check) if step.workload is None else sizes[step.workload]
            for session in self.sessions
            for step in session.steps
        )

    def predicted_s(self) -> float:
        """How long the round will take, roughly: three warm-up blocks and every step at a modest token rate."""
        check = sum(prompt.max_new_tokens for prompt in self.suite.check) / TOKENS_PER_S_PER_STREAM
        block = sum(p.max_new_tokens for prompts in self.suite.traffic.values() for p in prompts)
        timed = sum(
            sum(p.max_new_tokens for p in self.suite.traffic[w.id]) * w.passes / w.concurrency
            for w in self.suite.suite.workload
        )
        widest = max(workload.concurrency for workload in self.suite.suite.workload)
        traffic = check + (3 * block / widest + timed) / TOKENS_PER_S_PER_STREAM
        return len(self.sessions) * (START_S + STOP_S + SESSION_REST_S + traffic)


def load_engine(workspace: Workspace, name: str | None) -> Engine:
    """The engine plugin for this workspace, with the Python that has it."""
    chosen = name or workspace.settings.engine.name
    return plugins.load(engines, chosen, Engine)(python=workspace.engine_python())


def read_shipped(workspace: Workspace, device: str) -> Effective | None:
    """What production serves on `device` now, or None while nothing is shipped."""
    try:
        entry = launch.shipped_entry(workspace.root, device)
    except launch.LaunchError as problem:
        raise InputError(str(problem), next="restore candidates/shipped.json from git") from None
    return read_effective(workspace.root / entry["directory"]) if entry else None


def load_original(workspace: Workspace, engine: Engine, name: str) -> Effective:
    """The original called `name`, flattened: it stands on nothing that ships."""
    return engine.effective(flatten(workspace.candidates, name, engine=engine.name, shipped=None, original=name))


def stored_original(workspace: Workspace, name: str) -> Effective | None:
    """What the launcher serves while nothing is shipped, or None if it was never written."""
    directory = workspace.candidates / name
    return read_effective(directory) if (directory / EFFECTIVE_FILE).is_file() else None


def load_effective(
    workspace: Workspace, engine: Engine, bundle_id: str, device: str
) -> tuple[Bundle | None, Effective]:
    """(the bundle as written, what the launcher gets); the bundle is None for `shipped` itself."""
    shipped = read_shipped(workspace, device)
    if bundle_id == "shipped" and shipped is not None:
        return None, shipped
    original = workspace.on(device).original
    name = original if bundle_id in ("shipped", "original") else bundle_id
    flattened = flatten(workspace.candidates, name, engine=engine.name, shipped=shipped, original=original)
    return flattened.bundle, engine.effective(flattened)


def make_plan(workspace: Workspace, bundle_id: str, options: Options) -> Plan:
    """Load and validate everything. A typo costs a second here and an hour later; raises InputError."""
    engine = load_engine(workspace, options.engine)
    host = read_host()
    bundle, candidate = load_effective(workspace, engine, bundle_id, host.device)
    if bundle is None:
        bundle = Bundle(schema_="loop.bundle/1", hypothesis="the shipped bundle against itself")
    _, baseline = load_effective(workspace, engine, options.baseline, host.device)
    _refuse_stale_original(workspace, engine, baseline)
    suite = load_suite(workspace.workloads, options.suite or workspace.settings.suite)
    load_gates(suite.suite.gates)
    if bundle.expect is not None:
        _refuse_impossible(bundle.expect, suite)
    model = workspace.model_path(options.model)
    model_sha256 = hash_model(model)
    check_target(candidate.content, engine_version=engine.version, device=host.device, model_sha256=model_sha256)
    sessions = plan_sessions(options.protocol, suite)
    if options.port is not None:
        refuse_occupied(options.port)
    check_requests(model, suite.check)
    for workload in suite.suite.workload:
        timed_requests(model, suite.traffic[workload.id], secret=b"", workload=workload.id, pass_index=0)
    return Plan(
        workspace=workspace,
        engine=engine,
        engine_version=engine.version,
        model=model,
        model_sha256=model_sha256,
        suite=suite,
        host=host,
        bundle=bundle,
        baseline=baseline,
        candidate=candidate,
        protocol=options.protocol,
        sessions=sessions,
        port=options.port,
    )


def _refuse_impossible(expect: Expect, suite: LoadedSuite) -> None:
    """An expectation of a workload or metric that is not measured can never be met."""
    workloads = [workload.id for workload in suite.suite.workload]
    for kind, name, known in (
        ("workload", expect.workload, workloads),
        ("metric", expect.metric, list(plugins.available(metrics))),
    ):
        if name is not None and name not in known:
            hint = plugins.closest(name, known)
            raise InputError(f"[expect] {kind} {name!r} is not in {suite.id}; known: {', '.join(known)}{hint}")


def _refuse_stale_original(workspace: Workspace, engine: Engine, baseline: Effective) -> None:
    """Production reads `effective.json`, not TOML: what is measured as the original must be what it serves."""
    stored = stored_original(workspace, baseline.bundle) if engine.name == workspace.settings.engine.name else None
    if stored is not None and stored.sha256 != baseline.sha256:
        raise InputError(
            f"candidates/{baseline.bundle}/{EFFECTIVE_FILE} is not what {baseline.bundle} says now",
            next="`loop init` writes it anew",
        )
