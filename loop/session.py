"""A session: one server lifetime of one arm, from launch to closed port, with everything measured in it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loop import prompts
from loop.bundles import Effective
from loop.engines import Engine
from loop.errors import ServerError
from loop.host import free_port
from loop.measure import Artifact, ClientProcess, Measurement, keep, run_step
from loop.prompts import Prompt
from loop.record import Record
from loop.schedule import Arm, SessionPlan, Step
from loop.server import Exit, Server
from loop.suites import LoadedSuite
from loop.traffic import check_requests, timed_requests
from loop.watch import Watcher


class Crash(Record):
    """A server that did not start, died under load, or refused to do its part."""

    stage: str
    """`start` or `traffic`."""
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
    clock = _Phases()
    directory = bench.raw / plan.label
    bundle = bench.raw / f"bundle-{plan.arm}"
    effective.write(bundle)
    server = Server(
        bench.engine,
        launcher=bench.launcher,
        bundle=bundle,
        model=bench.model,
        port=bench.port or free_port(),
        mark=f"{bench.round_id}/{plan.label}",
        log=directory / "server.log",
    )
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    info: dict[str, Any] | None = None
    rates: list[float] = []
    measurements: list[Measurement] = []
    crash: Crash | None = None

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
        )

    with ClientProcess(directory / "client.log") as client, server:
        try:
            with clock.phase("launch"):
                watcher.phase("starting the server")
                info = bench.engine.resolved(server.wait_ready(bench.start_timeout_s, watcher))
            with clock.phase("warmup"):
                _warm_up(server, client, bench, directory, watcher, rates)
            checked = False
            for step in plan.steps:
                if step.kind == "timed" and not checked:
                    checked = True
                    if not go_on(seen()):
                        watcher.note(f"{plan.label}: timed steps skipped")
                        break
                server.flush()
                with clock.phase(step.kind):
                    measurements.append(_run(step, server, client, bench, directory, watcher))
                server.refuse_dead()
        except ServerError as problem:
            crash = Crash(stage=problem.stage, message=problem.what, log_tail=problem.log_tail)
            watcher.note(f"{plan.label}: {problem.what}")
        watcher.phase("stopping the server")
        with clock.phase("stop"):
            server.stop()
    return seen()


def _run(
    step: Step, server: Server, client: ClientProcess, bench: Bench, directory: Path, watcher: Watcher
) -> Measurement:
    """One step of the plan."""
    if step.workload is None:
        requests, concurrency = check_requests(bench.model, bench.suite.check), 1
    else:
        workload = bench.suite.workload(step.workload)
        requests = timed_requests(
            bench.model,
            bench.suite.traffic[step.workload],
            secret=bytes.fromhex(bench.secret_hex),
            workload=step.workload,
            pass_index=step.pass_index,
        )
        concurrency = len(requests) if workload.kind == "offline" else workload.concurrency
    watcher.phase(step.name, len(requests))
    return run_step(
        step,
        requests,
        client=client,
        concurrency=concurrency,
        port=server.port,
        dialect=bench.engine.dialect,
        directory=directory,
        root=bench.raw,
        watcher=watcher,
    )


def _warm_up(
    server: Server, client: ClientProcess, bench: Bench, directory: Path, watcher: Watcher, rates: list[float]
) -> None:
    """Blocks of every shape at full concurrency, with prompts of their own, until three agree or the cap is reached.

    Source: three consecutive blocks within 2 % (`[warmup]` of the suite); fewer warm-ups than streams leave a bias.
    """
    settings = bench.suite.suite.warmup
    concurrency = max(workload.concurrency for workload in bench.suite.suite.workload)
    shapes = _warm_up_shapes(bench)
    for block in range(settings.max_blocks):
        texts = prompts.warmup(f"{bench.suite.id}-{block}", shapes)
        requests = timed_requests(
            bench.model, texts, secret=bytes.fromhex(bench.secret_hex), workload="warmup", pass_index=block
        )
        step = Step(kind="timed", workload="warmup", pass_index=block)
        watcher.phase(f"warm-up {block + 1}", len(requests))
        measurement = run_step(
            step,
            requests,
            client=client,
            concurrency=concurrency,
            port=server.port,
            dialect=bench.engine.dialect,
            directory=directory / "warmup",
            root=bench.raw,
            watcher=watcher,
        )
        server.refuse_dead()
        rates.append(measurement.num_tokens / measurement.client.wall_s)
        if _settled(rates, bench):
            return


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


class _Phases:
    """Seconds by phase, and what is left over: the cost of orchestration."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._spent: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._spent[name] = self._spent.get(name, 0.0) + time.monotonic() - started

    def finished(self) -> dict[str, float]:
        total = time.monotonic() - self._started
        spent = {name: round(seconds, 3) for name, seconds in self._spent.items()}
        return {**spent, "overhead": round(total - sum(self._spent.values()), 3)}
