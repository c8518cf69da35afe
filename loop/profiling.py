"""Profiling: a session of its own, never timed, in which profilers look at a server one after another."""

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loop import dialects, plugins, profilers
from loop.bundles import Effective, Expect
from loop.dialects import Dialect, Request
from loop.errors import InputError, ServerError, UnfitError
from loop.host import free_port
from loop.loads import Decode, Load, Prefill, Traffic, Wave
from loop.measure import ClientProcess, keep
from loop.plan import Plan
from loop.profilers import LoadName, Profiler, Target, Wrapper
from loop.profilers.torch_trace import TorchTrace
from loop.profiles import Harvest, Kind, Profile
from loop.record import Record
from loop.schedule import Arm
from loop.server import Server
from loop.session import Bench, warm_up
from loop.traffic import context_length, timed_requests
from loop.watch import Watcher

LOADS: tuple[LoadName, ...] = ("prefill", "decode", "traffic")
DECODE_TOKENS = 1024
"""At most; a decode profile ends long before."""
NUM_STEPS = 5
SLACK_STEPS = 8
"""Steps that a decode load goes on beyond those that are looked at."""


class Look(Record):
    """What to look at, and how."""

    workload: str
    """Whose prompts and concurrency."""
    profilers: tuple[Any, ...]
    num_steps: int = NUM_STEPS
    seconds: float
    """Of mixed traffic, for what samples."""


def profile_bench(plan: Plan, raw: Path, name: str) -> Bench:
    """What the sessions of `loop profile` share: the plan's, with files in `raw` and marks that begin with `name`."""
    return Bench(
        engine=plan.engine,
        launcher=plan.workspace.launcher,
        model=plan.model,
        suite=plan.suite,
        secret_hex=secrets.token_hex(32),
        start_timeout_s=plan.workspace.settings.engine.start_timeout_s,
        raw=raw,
        round_id=name,
        port=plan.port,
    )


def default_profilers(plan: Plan) -> tuple[str, ...]:
    """All that look into a server that runs; of GPUs where there are any."""
    return ("torch_trace", "py_spy", "host_samples", *(["gpu_samples"] if plan.host.gpus else []))


def choose_profilers(names: Sequence[str], kind: Kind, num_steps: int) -> tuple[Profiler, ...]:
    """The named ones, set for this kind of session. Raises InputError for a name that is no profiler."""
    chosen = [plugins.load(profilers, name, Profiler) for name in names]
    is_mapping = kind == "mapping"
    return tuple(
        cls(num_steps=num_steps, with_stack=is_mapping, record_shapes=is_mapping) if cls is TorchTrace else cls()
        for cls in chosen
    )


def choose_workload(bench: Bench, named: str | None, expect: Expect | None) -> str:
    """The one that is named, or expected to move, or has most in flight. Raises InputError for an unknown one."""
    known = [workload.id for workload in bench.suite.suite.workload]
    if named is not None and named not in known:
        hint = plugins.closest(named, known)
        raise InputError(f"no workload called {named!r} in {bench.suite.id}; known: {', '.join(known)}{hint}")
    if chosen := named or (expect.workload if expect else None):
        return chosen
    return max(bench.suite.suite.workload, key=lambda workload: workload.concurrency).id


def profile_session(
    label: str, kind: Kind, effective: Effective, bench: Bench, look: Look, watcher: Watcher, *, arm: Arm | None = None
) -> Profile:
    """Launch, warm up, then every profiler under each of its loads, stop. A crash is recorded, not raised.

    Files are below the bench's raw directory: `<label>/<profiler>-<load>/`. What a profiler lacks is a harvest.
    """
    directory = bench.raw / label
    harvests: list[Harvest] = []
    began = time.monotonic()
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    served = bench.engine.without_graphs(effective) if kind == "mapping" else effective
    bundle = bench.raw / f"bundle-{label}"
    served.write(bundle)
    mark = f"{bench.round_id}/{label}"
    log = directory / "server.log"
    wrapper = next((one for one in look.profilers if isinstance(one, Wrapper)), None)
    engine, crash = bench.engine, None
    before = Target(url="", python=engine.python, pid=0, log=log)
    if wrapper is not None:
        wrapper.check(before)
        engine = engine.model_copy(update={"python": str(wrapper.wrap(before, directory / f"{wrapper.name}-decode"))})
    server = Server(
        engine,
        launcher=bench.launcher,
        bundle=bundle,
        model=bench.model,
        port=bench.port or free_port(),
        mark=mark,
        log=log,
    )
    with ClientProcess(directory / "client.log") as client, server:
        try:
            watcher.phase("starting the server")
            info = server.wait_ready(bench.start_timeout_s, watcher)
            warm_up(server, client, bench, directory, watcher, [])
            target = _target(server, bench, info)
            for load, group in _order(look.profilers):
                watcher.phase(f"{', '.join(one.name for one in group)} under {load}")
                harvests += _look(load, group, target, bench, look, directory)
                server.refuse_dead()
        except ServerError as problem:
            crash = str(problem)
            watcher.note(f"{label}: {problem.what}")
        watcher.phase("stopping the server")
        server.stop()
    harvests = [_complete(one, wrapper, directory, bench) for one in harvests]
    return Profile(
        label=label,
        arm=arm,
        kind=kind,
        bundle=effective.bundle,
        bundle_sha256=effective.sha256,
        started_utc=started_utc,
        seconds=round(time.monotonic() - began, 1),
        workload=look.workload,
        harvests=tuple(harvests),
        crash=crash,
    )


def profile_arms(plan: Plan, bench: Bench, watcher: Watcher) -> tuple[Profile, ...]:
    """A and B once each, as they are served, after the timed sessions of a round. Raises nothing that would undo it."""
    workload = choose_workload(bench, None, plan.bundle.expect)
    names = default_profilers(plan)
    chosen = choose_profilers(names, "formal", NUM_STEPS)
    look = Look(workload=workload, profilers=chosen, seconds=plan.profile_s or 0.0)
    found = []
    arms: tuple[tuple[Arm, Effective], ...] = (("A", plan.baseline), ("B", plan.candidate))
    for arm, effective in arms:
        watcher.session(f"{arm}-profile", effective.bundle)
        try:
            found.append(profile_session(f"{arm}-profile", "formal", effective, bench, look, watcher, arm=arm))
        except UnfitError as problem:
            watcher.note(f"{arm} was not profiled: {problem.what}")
    return tuple(found)


def _target(server: Server, bench: Bench, info: dict[str, Any]) -> Target:
    sizes = [info[name] for name in ("tp_size", "pp_size") if isinstance(info.get(name), int)]
    return Target(
        url=server.url,
        python=bench.engine.python,
        pid=server.pid,
        log=server.log,
        num_ranks=math.prod(sizes),
        has_gpu=str(info.get("device") or "").startswith("cuda"),
    )


def _order(chosen: Sequence[Profiler]) -> Iterator[tuple[LoadName, list[Profiler]]]:
    """Those that slow the server each on its own, then the others together, load by load."""
    for load in LOADS:
        here = [one for one in chosen if load in one.loads]
        yield from ((load, [one]) for one in here if one.is_alone)
        together = [one for one in here if not one.is_alone]
        if together:
            yield load, together


def _look(
    load: LoadName, group: Sequence[Profiler], target: Target, bench: Bench, look: Look, directory: Path
) -> Iterator[Harvest]:
    """One load with these profilers; those that cannot work here do not keep the others from it."""
    able = []
    for one in group:
        try:
            one.check(target)
            able.append(one)
        except UnfitError as problem:
            yield Harvest(profiler=one.name, load=load, files=(), problem=str(problem))
    if not able:
        return
    found: dict[str, list[Path]] = {}
    failed = ""
    try:
        with make_load(load, target.url, bench, look) as traffic, ExitStack() as stack:
            for one in able:
                where = directory / f"{one.name}-{load}"
                found[one.name] = stack.enter_context(one.profile(target, load, where))
            traffic.work()
    except ServerError:
        raise
    except UnfitError as problem:
        failed = str(problem)
    for one in able:
        files = tuple(keep(path, bench.raw) for path in found.get(one.name, ()))
        yield Harvest(profiler=one.name, load=load, files=files, problem=failed or None if not files else None)


def _complete(harvest: Harvest, wrapper: Wrapper | None, directory: Path, bench: Bench) -> Harvest:
    """A profiler that started the server may write its report when that ends."""
    if wrapper is None or harvest.profiler != wrapper.name:
        return harvest
    written = sorted(path for path in (directory / f"{wrapper.name}-{harvest.load}").rglob("*") if path.is_file())
    return harvest.model_copy(update={"files": tuple(keep(path, bench.raw) for path in written)})


def make_load(load: LoadName, url: str, bench: Bench, look: Look) -> Load:
    """The traffic of that name, of the workload's prompts under fresh salts."""
    workload, prompts = bench.suite.workload(look.workload), bench.suite.traffic[look.workload]
    concurrency = len(prompts) if workload.kind == "offline" else workload.concurrency
    dialect = plugins.load(dialects, bench.engine.dialect, Dialect)
    secret = secrets.token_bytes(32)

    def wave(number: int) -> Sequence[Request]:
        return timed_requests(bench.model, prompts, secret=secret, workload=look.workload, pass_index=number)

    if load == "prefill":
        return Prefill(url, dialect, wave, num_prompts=look.num_steps)
    if load == "decode":
        steps = look.num_steps + SLACK_STEPS
        return Decode(url, dialect, _longer(wave, bench.model), concurrency=concurrency, num_steps=steps)
    return Traffic(url, dialect, wave, concurrency=concurrency, seconds=look.seconds)


def _longer(wave: Wave, model: Path) -> Wave:
    """The same prompts with answers as long as the model's context allows, up to a limit: none may end too early."""
    limit = context_length(model) or DECODE_TOKENS

    def longer(number: int) -> Sequence[Request]:
        return [
            one.model_copy(update={"max_new_tokens": max(1, min(DECODE_TOKENS, limit - len(one.input_ids) - 1))})
            for one in wave(number)
        ]

    return longer
