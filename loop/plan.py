"""A plan: everything a round needs, loaded and validated before anything starts."""

from pathlib import Path

from loop import engines, launch, metrics, plugins
from loop.bundles import EFFECTIVE_FILE, Bundle, Effective, Expect, check_target, flatten, read_effective
from loop.canaries import num_canaries
from loop.engines import Engine
from loop.environment import Environment
from loop.errors import InputError
from loop.gates import Purpose
from loop.heldback import heldback_counts
from loop.host import Host, hash_model, read_host, refuse_occupied
from loop.judge import load_gates
from loop.record import Record
from loop.schedule import EXTENDS, SessionPlan, plan_sessions
from loop.suites import LoadedSuite, load_suite
from loop.terms import Terms
from loop.traffic import check_requests, timed_requests
from loop.workspace import Workspace


class Options(Record):
    """What a person chose on the command line."""

    suite: str | None = None
    model: str | None = None
    baseline: str = "shipped"
    """`shipped`, `original` or a bundle id."""
    engine: str | None = None
    protocol: str = "aba"
    extend: bool = True
    """Whether an undecided A/B/A goes on with one more B and A."""
    port: int | None = None
    """Where servers listen; None lets every session choose a free port."""
    purpose: Purpose = "candidate"
    confirms: str | None = None
    """The round that a confirmation measures afresh."""
    profile_s: float | None = None
    """Seconds for which A and B are sampled once each after the timed sessions; None: they are not profiled."""


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
    extend: bool
    purpose: Purpose
    confirms: str | None
    sessions: tuple[SessionPlan, ...]
    """At least these: an undecided A/B/A goes on with one more B and A."""
    port: int | None
    profile_s: float | None = None

    @property
    def terms(self) -> Terms:
        """What must be equal for two rounds to be comparable."""
        return Terms(
            environment=Environment(host=self.host, model_sha256=self.model_sha256, engine_version=self.engine_version),
            suite_sha256=self.suite.sha256,
            engine=self.engine.name,
        )

    @property
    def fingerprint(self) -> str:
        """Of its terms."""
        return self.terms.fingerprint

    @property
    def num_requests(self) -> int:
        """Requests of all steps of all sessions with canaries and held-back prompts, warm-up apart."""
        held = sum(heldback_counts(self.suite.check).values()) if self.purpose == "confirmation" else 0
        sizes = {workload: len(prompts) for workload, prompts in self.suite.traffic.items()}
        return sum(
            len(self.suite.check) + held
            if step.workload is None
            else sizes[step.workload] + num_canaries(sizes[step.workload], len(session.canaries))
            for session in self.sessions
            for step in session.steps
        )


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
        extend=options.extend and options.protocol in EXTENDS and options.purpose != "calibration",
        purpose=options.purpose,
        confirms=options.confirms,
        sessions=sessions,
        port=options.port,
        profile_s=options.profile_s,
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
