"""Brackets built by hand: sessions whose replies lie on disk, exactly as a round stores them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from loop.client import ClientReport
from loop.compare import OVERALL, Comparison
from loop.content import AppliesTo, Content, Numerics
from loop.effective import Effective
from loop.gates import Bracket
from loop.host import Host, Revision
from loop.judge import Verdict
from loop.ledger import EngineRef, ModelRef, Round, SuiteRef
from loop.measure import Artifact, Measurement, keep
from loop.prompts import Prompt
from loop.replies import Reply, write_replies
from loop.schedule import Step
from loop.server import Exit
from loop.session import Crash, Session
from loop.stats import Estimate
from loop.suites import LoadedSuite, PromptFile, Suite, Warmup, Workload

CLEAN = Exit(returncode=0, stop_s=0.1, killed=False, survivors=(), port_closed=True)
TEXT = "one two three four five six seven eight nine ten"
SEQUENTIAL, CONCURRENT = "one", "four"
_FILE = PromptFile(file="prompts.jsonl", sha256="0" * 64)
_numbers = count()


def workload(workload_id: str, kind: str = "sequential", *, concurrency: int = 1, passes: int = 1) -> Workload:
    """A workload whose prompts nobody will read."""
    return Workload.model_validate(
        {"id": workload_id, "kind": kind, "concurrency": concurrency, "passes": passes, "prompts": _FILE}
    )


def suite(
    *workloads: Workload, gates: dict[str, dict[str, Any]] | None = None, num_prompts: int = 3, agree_pct: float = 2.0
) -> LoadedSuite:
    """A loaded suite; a sequential and a concurrent workload unless others are given."""
    chosen = workloads or (workload(SEQUENTIAL), workload(CONCURRENT, "concurrent", concurrency=4))
    declared = Suite(
        schema_="loop.suite/1",
        title="by hand",
        warmup=Warmup(agree_pct=agree_pct),
        check=_FILE,
        workload=chosen,
        gates=gates or {},
    )
    prompts = tuple(
        Prompt(id=f"p{number}", category="normal", text="a text", max_new_tokens=8) for number in range(num_prompts)
    )
    return LoadedSuite(
        id="by-hand",
        suite=declared,
        sha256=declared.digest(),
        check=prompts,
        traffic={item.id: prompts for item in chosen},
    )


def reply(rid: str, text: str = TEXT, *, e2e_ms: float = 100.0, **fields: Any) -> Reply:
    """A successful reply that was sent at 0; `fields` replace what they name."""
    last_ns = int(e2e_ms * 1e6)
    defaults = {
        "sent_ns": 0,
        "first_ns": last_ns // 10,
        "last_ns": last_ns,
        "done_ns": last_ns,
        "num_prompt_tokens": 16,
        "num_tokens": 10,
        "num_first_tokens": 1,
        "num_cached_tokens": 0,
        "num_chunks": 10,
        "finish_reason": "length",
        "text": text,
    }
    return Reply.model_validate({"rid": rid, **defaults, **fields})


def replies(
    prefix: str, texts: Sequence[str] = (TEXT,) * 3, *, e2e_ms: float = 100.0, **fields: Any
) -> tuple[Reply, ...]:
    """One reply per text, `prefix-000` and on."""
    return tuple(reply(f"{prefix}-{i:03d}", text, e2e_ms=e2e_ms, **fields) for i, text in enumerate(texts))


def measurement(root: Path, step: Step, received: Sequence[Reply]) -> Measurement:
    """A measurement whose replies are written below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{next(_numbers):06d}-{step.name}.jsonl.zst"
    write_replies(path, list(received))
    client = ClientReport(started_at_ns=0, wall_s=1.0, cpu_s=0.1, loop_lag_p99_ms=0.1, num_connections=1)
    return Measurement(
        step=step,
        started_utc="2026-01-01T00:00:00.000Z",
        num_requests=len(received),
        failures=dict(Counter(item.failure for item in received if item.failure)),
        num_prompt_tokens=sum(item.num_prompt_tokens or 0 for item in received),
        num_tokens=sum(item.num_tokens or 0 for item in received),
        num_cached_tokens=sum(item.num_cached_tokens or 0 for item in received),
        client=client,
        raw=keep(path, root),
    )


def session(
    root: Path,
    label: str,
    *,
    check: Sequence[Reply] | None = None,
    timed: Mapping[str, Sequence[Sequence[Reply]]] | None = None,
    info: dict[str, Any] | None = None,
    crash: Crash | None = None,
    left: Exit = CLEAN,
    rates: Sequence[float] = (100.0, 100.0, 100.0),
    settled: bool = True,
    bundle_sha256: str = "0" * 64,
) -> Session:
    """A session; `timed` maps a workload to the replies of each of its passes."""
    steps = [(Step(kind="check"), check)] if check is not None else []
    for name, passes in (timed or {}).items():
        steps += [(Step(kind="timed", workload=name, pass_index=i), got) for i, got in enumerate(passes)]
    return Session(
        label=label,
        arm="A" if label.startswith("A") else "B",
        bundle_sha256=bundle_sha256,
        started_utc="2026-01-01T00:00:00.000Z",
        phases_s={"launch": 1.0},
        info={"inert_number": 0} if info is None else info,
        warmup_tokens_per_s=tuple(rates),
        warmup_settled=settled,
        measurements=tuple(measurement(root, step, got) for step, got in steps),
        crash=crash,
        exit=left,
        log=Artifact(path="server.log", sha256="0" * 64, num_bytes=0),
    )


def timed_session(root: Path, label: str, values_ms: Mapping[str, Sequence[float]], **fields: Any) -> Session:
    """A session whose workloads took exactly these milliseconds, one value a pass; all answers are right."""
    timed = {
        name: [replies(f"{name}-{i}", e2e_ms=value) for i, value in enumerate(values)]
        for name, values in values_ms.items()
    }
    return session(root, label, check=replies("check"), timed=timed, **fields)


def same_session(root: Path, label: str, **fields: Any) -> Session:
    """A session in which both workloads of the default suite took 100 ms."""
    return timed_session(root, label, {SEQUENTIAL: [100.0], CONCURRENT: [100.0]}, **fields)


def effective(
    bundle: str = "base", *, args: dict[str, Any] | None = None, numerics: Numerics = "exact", **fields: Any
) -> Effective:
    """What the launcher gets for a bundle with these options; `fields` replace what they name."""
    content = Content(engine="fake", args=args or {}, env={}, numerics=numerics, applies_to=AppliesTo())
    defaults = {
        "bundle": bundle,
        "lineage": (bundle,),
        "sha256": content.digest(),
        "content": content,
        "command": ("-m", "loop.fake_server"),
        "argv": (),
        "asked": {name.replace("-", "_"): value for name, value in (args or {}).items()},
        "platforms": {},
    }
    return Effective.model_validate({**defaults, **fields}).sealed()


def comparison(
    scope: str = OVERALL,
    *,
    effect_pct: float = 0.0,
    half_pct: float = 1.0,
    speedup: float | None = None,
    drift_pct: float = 0.0,
    **fields: Any,
) -> Comparison:
    """A comparison whose interval is the effect and `half_pct` on both sides."""
    defaults = {
        "metric": "e2e",
        "unit": "ms",
        "better": "lower",
        "sessions": {"A1": 100.0, "B": 100.0, "A2": 100.0},
        "sigma_pct": 0.5,
        "dof": 14,
        "mde_pct": 1.0,
        "drift_limit_pct": 2.0,
    }
    numbers = {**defaults, **fields}
    judged = Estimate(
        effect=effect_pct / 100,
        half=half_pct / 100,
        sigma=numbers["sigma_pct"] / 100,
        dof=4,
        mde=0.01,
        drift=drift_pct / 100,
        drift_limit=numbers["drift_limit_pct"] / 100,
    )
    return Comparison.model_validate(
        {
            "scope": scope,
            "effect_pct": effect_pct,
            "low_pct": effect_pct - half_pct,
            "high_pct": effect_pct + half_pct,
            "speedup": 1 + effect_pct / 100 if speedup is None else speedup,
            "drift_pct": drift_pct,
            "min_effect_pct": judged.min_effect * 100,
            "drifted": judged.drifted,
            "futile": judged.futile,
            "outcome": judged.outcome,
            **numbers,
        }
    )


def comparisons(effect_pct: float = 0.0, **fields: Any) -> tuple[Comparison, ...]:
    """The comparisons of the default suite, all with the same effect."""
    scopes = (SEQUENTIAL, CONCURRENT, "class:concurrent", "class:sequential", OVERALL)
    return tuple(comparison(scope, effect_pct=effect_pct, **fields) for scope in scopes)


def bracket(
    root: Path,
    sessions: Sequence[Session],
    *,
    compared: Sequence[Comparison] = (),
    baseline: Effective | None = None,
    candidate: Effective | None = None,
    of: LoadedSuite | None = None,
    derived: dict[str, frozenset[str]] | None = None,
) -> Bracket:
    """A bracket of these sessions; the candidate sets `inert-number` unless another one is given."""
    return Bracket(
        suite=of or suite(),
        derived=derived or {},
        baseline=baseline or effective(),
        candidate=candidate or effective("idea", args={"inert-number": 3}),
        sessions=tuple(sessions),
        comparisons=tuple(compared),
        raw=root,
    )


def host(**fields: Any) -> Host:
    """A machine; `fields` replace what they name."""
    defaults = {
        "machine": "bench",
        "device": "cpu",
        "cpu": "a cpu",
        "num_cpus": 2,
        "memory_bytes": 1 << 34,
        "kernel": "6.1",
        "boot_id": "boot",
        "python": "3.11.7",
        "driver": None,
        "gpus": (),
    }
    return Host.model_validate({**defaults, **fields})


def stored_round(round_id: str = "R000001-abcd", **fields: Any) -> Round:
    """A running round; `fields` replace what they name."""
    defaults = {
        "id": round_id,
        "status": "running",
        "created_utc": "2026-01-01T00:00:00.000Z",
        "argv": ("loop", "run", "idea"),
        "revision": Revision(version="0.1.0", package_sha256="0" * 64, commit=None, dirty=()),
        "host": host(),
        "fingerprint": "f" * 64,
        "engine": EngineRef(name="fake", version="0.1.0", python="python3"),
        "model": ModelRef(path="models/tiny", sha256="1" * 64),
        "suite": SuiteRef(id="by-hand", sha256="2" * 64),
        "client": "loop.client/1",
        "protocol": "aba",
        "sigma_prior_pct": 1.0,
        "hypothesis": "a test",
        "expect": None,
        "baseline": effective(),
        "candidate": effective("idea", args={"inert-number": 3}),
        "secret_sha256": "3" * 64,
    }
    return Round.model_validate({**defaults, **fields})


def closed_round(round_id: str = "R000001-abcd", outcome: str = "no_change", **fields: Any) -> Round:
    """A closed round with a verdict."""
    verdict = Verdict.model_validate({"outcome": outcome, "reason": "measured", "refused_by": (), "text": "a test"})
    closing = {"status": "closed", "closed_utc": "2026-01-01T00:05:00.000Z", "secret_hex": "00", "verdict": verdict}
    return stored_round(round_id, **{**closing, **fields})
