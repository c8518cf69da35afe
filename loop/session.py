"""A session: one server lifetime of one arm, from launch to closed port, with everything measured in it."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loop import prompts
from loop.arrivals import schedule_ns
from loop.bundles import Effective
from loop.canaries import insert_canaries
from loop.conditions import Conditions, Observer
from loop.dialects import Request
from loop.engines import Engine
from loop.environment import Environment, read_environment
from loop.errors import ServerError
from loop.host import free_port
from loop.measure import Artifact, ClientProcess, Measurement, keep, run_step
from loop.phases import Phases
from loop.prompts import Prompt
from loop.record import Record
from loop.schedule import Arm, SessionPlan, Step
from loop.server import Exit, Server
from loop.suites import LoadedSuite
from loop.traffic import check_requests, timed_requests
from loop.watch import Watcher


class Crash(Record):
    """A server that did not start, died or fell silent under load, or refused to do its part."""

    stage: str
    """`start`, `traffic`, or `flush` for a refused one."""
    message: str
    log_tail: str


class Session(Record):
    """What was seen in one server lifetime."""

    label: str
    arm: Arm
    bundle_sha256: str
    started_utc: str
    phases_s: dict[str, float]
    """Seconds of each phase in order: `launch`, `warmup`, `check`, `timed`, `stop`; `overhead` is the rest."""
    info: dict[str, Any] | None
    """The resolved settings a bundle could change; None if it never served."""
    warmup_tokens_per_s: tuple[float, ...]
    """Output tokens per second of each warm-up block."""
    warmup_settled: bool
    """Whether the last three warm-up blocks agreed."""
    measurements: tuple[Measurement, ...]
    crash: Crash | None
    exit: Exit
    log: Artifact
    environment: Environment | None = None
    """What was here before its server started; a difference from the round's own makes the round invalid."""
    conditions: Conditions | None = None
    """What the machine was like meanwhile, and who else used it."""
    accept_length: float | None = None
    """Tokens per step of speculative decoding, as the server counted them over all of it; None if it said nothing."""

    def measured(self, kind: str, workload: str | None = None) -> tuple[Measurement, ...]:
        """Its measurements of one kind, of one workload if given."""
        return tuple(
            m for m in self.measurements if m.step.kind == kind and (workload is None or m.step.workload == workload)
        )


class Bench(Record):
    """What every session of a round shares: the same requests, model and engine."""

    engine: Engine
    launcher: Path
    model: Path
    suite: LoadedSuite
    secret_hex: str
    """The round's secret: salts come from it, and nobody has seen it before the round."""
    start_timeout_s: float
    raw: Path
    """The round's raw directory."""
    round_id: str
    port: int | None = None
    """Where servers listen; None lets every session choose a free port."""
    heldback: tuple[Prompt, ...] = ()
    """Correctness prompts beside the suite's, of a confirmation."""


def run_session(
    plan: SessionPlan,
    effective: Effective,
    bench: Bench,
    watcher: Watcher,
    *,
    go_on: Callable[[Session], bool] = lambda _: True,
) -> Session:
    """Launch, warm up, flush, run the steps, stop. A crash is recorded, not raised.

    `go_on` is asked after the correctness step, with the session so far; if it says no, the timed steps are skipped.
    """
    clock = Phases()
    directory = bench.raw / plan.label
    environment = read_environment(bench.engine, bench.model)
    mark = f"{bench.round_id}/{plan.label}"
    observer = Observer(mark, {**os.environ, **effective.content.env})
    bundle = bench.raw / f"bundle-{plan.arm}"
    effective.write(bundle)
    server = Server(
        bench.engine,
        launcher=bench.launcher,
        bundle=bundle,
        model=bench.model,
        port=bench.port or free_port(),
        mark=mark,
        log=directory / "server.log",
    )
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    info: dict[str, Any] | None = None
    rates: list[float] = []
    measurements: list[Measurement] = []
    crash: Crash | None = None
    accept_length: float | None = None

    def seen() -> Session:
        return Session(
            label=plan.label,
            arm=plan.arm,
            bundle_sha256=effective.sha256,
            started_utc=started_utc,
            phases_s=clock.finished(),
            info=info,
            warmup_tokens_per_s=tuple(rates),
            warmup_settled=_settled(rates, bench),
            measurements=tuple(measurements),
            crash=crash,
            exit=server.exit or Exit(returncode=None, stop_s=0, killed=False, survivors=(), port_closed=False),
            log=keep(server.log, bench.raw),
            environment=environment,
            conditions=observer.conditions,
            accept_length=accept_length,
        )

    with observer, ClientProcess(directory / "client.log") as client, server:
        try:
            with clock.phase("launch"):
                watcher.phase("starting the server")
                info = bench.engine.resolved(server.wait_ready(bench.start_timeout_s, watcher))
            with clock.phase("warmup"):
                warm_up(server, client, bench, directory, watcher, rates)
            checked = False
            for step in plan.steps:
                if step.kind == "timed" and not checked:
                    checked = True
                    if not go_on(seen()):
                        watcher.note(f"{plan.label}: timed steps skipped")
                        break
                    observer.start()
                server.flush()
                with clock.phase(step.kind):
                    measurements.append(_run(step, plan, server, client, bench, directory, watcher))
                server.refuse_dead()
            accept_length = bench.engine.accept_length(server.read_info())
        except ServerError as problem:
            crash = Crash(stage=problem.stage, message=problem.what, log_tail=problem.log_tail)
            watcher.note(f"{plan.label}: {problem.what}")
        observer.stop()
        watcher.phase("stopping the server")
        with clock.phase("stop"):
            server.stop()
    return seen()


def _run(
    step: Step,
    plan: SessionPlan,
    server: Server,
    client: ClientProcess,
    bench: Bench,
    directory: Path,
    watcher: Watcher,
) -> Measurement:
    """One step of the plan."""
    schedule = None
    if step.workload is None:
        visible = check_requests(bench.model, bench.suite.check)
        requests, concurrency = visible + check_requests(bench.model, bench.heldback, name="heldback"), 1
    else:
        workload, texts = bench.suite.workload(step.workload), bench.suite.traffic[step.workload]
        secret = bytes.fromhex(bench.secret_hex)
        place: dict[str, Any] = {"secret": secret, "workload": workload.id, "pass_index": step.pass_index}
        requests = timed_requests(bench.model, texts, **place)
        requests = insert_canaries(bench.model, requests, texts, owners=plan.canaries, **place)
        concurrency = len(requests) if workload.kind == "offline" else workload.concurrency
        schedule = schedule_ns(workload, step.pass_index, len(requests))
    watcher.phase(step.name, len(requests))
    return _send(step, requests, concurrency, server, client, bench, directory, watcher, schedule)


def _send(
    step: Step,
    requests: Sequence[Request],
    concurrency: int,
    server: Server,
    client: ClientProcess,
    bench: Bench,
    directory: Path,
    watcher: Watcher,
    schedule: tuple[int, ...] | None = None,
) -> Measurement:
    """These requests to the session's server; on a schedule, if there is one."""
    return run_step(
        step,
        requests,
        client=client,
        concurrency=concurrency,
        port=server.port,
        dialect=bench.suite.suite.dialect or bench.engine.dialect,
        directory=directory,
        root=bench.raw,
        watcher=watcher,
        schedule_ns=schedule,
    )


def warm_up(
    server: Server, client: ClientProcess, bench: Bench, directory: Path, watcher: Watcher, rates: list[float]
) -> None:
    """Blocks of every shape at full concurrency, with prompts of their own, until three agree or the cap is reached.

    Source: three consecutive blocks within 2 % (`[warmup]` of the suite); fewer warm-ups than streams leave a bias.
    Raises ServerError as soon as nothing that was sent is answered.
    """
    settings = bench.suite.suite.warmup
    concurrency = max(workload.concurrency for workload in bench.suite.suite.workload)
    shapes = _warm_up_shapes(bench)
    for block in range(settings.max_blocks):
        texts = prompts.warmup(f"{bench.suite.id}-{block}", shapes)
        requests = timed_requests(
            bench.model, texts, secret=bytes.fromhex(bench.secret_hex), workload="warmup", pass_index=block
        )
        watcher.phase(f"warm-up {block + 1}", len(requests))
        num_tokens, wall_s = 0, 0.0
        for step, wave in _waves(block, requests, concurrency):
            seen = _send(step, wave, concurrency, server, client, bench, directory / "warmup", watcher)
            server.refuse_silent(seen.num_requests, seen.failures)
            num_tokens += seen.num_tokens
            wall_s += seen.client.wall_s
        rates.append(num_tokens / wall_s)
        if _settled(rates, bench):
            return


def _waves(block: int, requests: Sequence[Request], concurrency: int) -> list[tuple[Step, Sequence[Request]]]:
    """A block is sent as a whole, but the first one after a wave of one request per stream.

    A server that answers nothing costs one idle timeout then, not one for every request that a stream sends.
    """
    whole = Step(kind="timed", workload="warmup", pass_index=block)
    if block > 0:
        return [(whole, requests)]
    first = Step(kind="timed", workload="first_wave")
    return [(step, wave) for step, wave in ((first, requests[:concurrency]), (whole, requests[concurrency:])) if wave]


def _warm_up_shapes(bench: Bench) -> list[Prompt]:
    """Of each workload twice as many requests as it has in flight, outputs cut short."""
    longest = bench.suite.suite.warmup.max_output_tokens
    return [
        prompt.model_copy(update={"max_new_tokens": min(prompt.max_new_tokens, longest)})
        for workload in bench.suite.suite.workload
        for prompt in bench.suite.traffic[workload.id][: 2 * workload.concurrency]
    ]


def _settled(rates: list[float], bench: Bench) -> bool:
    last = rates[-3:]
    return len(last) == 3 and max(last) <= min(last) * (1 + bench.suite.suite.warmup.agree_pct / 100)
