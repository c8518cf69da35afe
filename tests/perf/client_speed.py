"""The timed client beside others, on the fake server: what they deliver, what they say, what they cost.

`python -m tests.perf.client_speed` prints the tables of docs/client-speed.md, `--write` puts them into the page. The
other clients are installed once, into environments of their own: `--install`. Needs a machine that nobody else uses.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import psutil

from loop.host import read_host
from tests.perf.client_load import NUM_PROMPT_TOKENS, FakeServer, Load, Prompts
from tests.perf.client_page import PAGE, Study, measured, put
from tests.perf.client_runs import Run, RunFailed, run_client
from tests.perf.clients import BenchServing, Client, Ours, RawReader, RustClient
from tests.perf.rivals import AIPerf, GuideLLM, Rival

RIVALS = Path("/tmp/loop-rivals")  # noqa: S108 (kept between calls on purpose)
NUM_STREAMS = 64
SLOW = Load("6,400 tokens/s offered", ttft_ms=10, tpot_ms=10, num_tokens=96, num_streams=NUM_STREAMS)
FULL = Load("12,800 tokens/s offered", ttft_ms=10, tpot_ms=5, num_tokens=256, num_streams=NUM_STREAMS)
MOST = Load("As fast as it goes", ttft_ms=0, tpot_ms=0, num_tokens=256, num_streams=NUM_STREAMS)
LOADS = (SLOW, FULL, MOST)
NUM_ROUNDS = 2
"""Requests of each stream in the paced loads: two seconds and more."""
NUM_SMOKE_TOKENS = 16
PAUSE_S = 0.1
BUSY_CORES = 0.3
"""Used by others before the first run: more spoils the numbers."""


def all_clients(rivals: Path) -> list[Client]:
    """In the order of the tables."""
    return [
        RawReader(),
        Ours("completions", "/v1/completions", num_rounds_unlimited=16),
        Ours("generate", "/generate", num_rounds_unlimited=4),
        BenchServing("`sglang.bench_serving`", "sglang.benchmark.serving", num_rounds_unlimited=3),
        RustClient("SGLang's Rust client", "tests.perf.rust_client", num_rounds_unlimited=16),
        GuideLLM(rivals),
        AIPerf(rivals),
    ]


def chosen_clients(options: argparse.Namespace) -> tuple[dict[str, Client], list[tuple[str, str]]]:
    """The clients that are there, by name, and why others are not."""
    there: dict[str, Client] = {}
    problems = []
    for client in all_clients(options.rivals_dir):
        if options.only and not any(part in client.name for part in options.only):
            continue
        if options.install and isinstance(client, Rival):
            client.install()
        try:
            print(f"{client.name}: {client.version}", flush=True)
        except OSError as problem:
            problems.append((client.name, str(problem)))
            print(f"{client.name}: {problem}", flush=True)
        else:
            there[client.name] = client
    return there, problems


def measure(
    clients: Sequence[Client], loads: Sequence[Load], *, num_repetitions: int, seed: int, smoke: bool
) -> tuple[list[Run], list[tuple[str, str]]]:
    """Every client with every load, once in each repetition, each repetition in a new random order."""
    rng = Random(seed)
    runs: list[Run] = []
    problems: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="client-speed-") as home, contextlib.ExitStack() as stack:
        directory = Path(home)
        most_rounds = max([NUM_ROUNDS, *(client.num_rounds_unlimited for client in clients)])
        prompts = Prompts(directory, NUM_STREAMS * most_rounds)
        servers = {
            load.name: stack.enter_context(FakeServer(load, directory / f"server-{number}.log"))
            for number, load in enumerate(loads)
        }
        for repetition in range(num_repetitions):
            order = [(client, load) for client in clients for load in loads]
            rng.shuffle(order)
            for client, load in order:
                num_rounds = client.num_rounds_unlimited if load.unlimited and not smoke else NUM_ROUNDS
                began_s = time.monotonic()
                try:
                    run = run_client(
                        client, load, servers[load.name], prompts, num_rounds=num_rounds, directory=directory
                    )
                except RunFailed as problem:
                    problems.append((f"{client.name}, {load.name}", str(problem)))
                    print(f"{repetition + 1} {client.name}, {load.name}: {problem}", flush=True)
                else:
                    runs.append(run)
                    print(f"{repetition + 1} {time.monotonic() - began_s:4.1f} s {run}", flush=True)
                time.sleep(PAUSE_S)
    return runs, problems


def facts(options: argparse.Namespace, clients: dict[str, Client], others_cores: float) -> list[tuple[str, str]]:
    """What somebody needs who wants the same numbers."""
    host = read_host()
    command = " ".join(["python -m tests.perf.client_speed", *sys.argv[1:]])
    versions = [client.version for client in clients.values()]
    quiet = "" if others_cores <= BUSY_CORES else " **Not a quiet machine: the numbers say little.**"
    return [
        ("command", f"`{command}`"),
        ("date", f"{datetime.now(UTC):%Y-%m-%d}"),
        ("machine", f"{host.cpu}, {host.num_cpus} cores, shared by client and server"),
        ("others before the first run", f"{others_cores:.2f} cores.{quiet}"),
        ("runs", f"{options.repetitions} of every client with every load, in random order (seed {options.seed})"),
        ("prompts", f"{NUM_PROMPT_TOKENS} tokens, the same for all"),
        ("versions", ", ".join(dict.fromkeys([f"Python {sys.version.split()[0]}", *versions]))),
    ]


def busy_cores() -> float:
    """Cores that this machine uses while nothing of ours runs."""
    return psutil.cpu_percent(interval=1.0) / 100 * (os.cpu_count() or 1)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf.client_speed", description=__doc__)
    add = parser.add_argument
    add("--rivals-dir", type=Path, default=RIVALS, help="where the other clients are installed (%(default)s)")
    add("--install", action="store_true", help="install those that are missing first: minutes, gigabytes")
    add("--repetitions", type=int, default=3, help="%(default)s")
    add("--seed", type=int, default=2026, help="of the order (%(default)s)")
    add("--only", action="append", metavar="PART", help="only clients with this in their name; may be repeated")
    add("--smoke", action="store_true", help="tiny loads, once: whether every client works, no measurement")
    add("--write", action="store_true", help="put the tables into docs/client-speed.md")
    options = parser.parse_args()
    if options.smoke and options.write:
        parser.error("--smoke measures nothing that could be written")
    if options.smoke:
        options.repetitions = 1
    return options


def main() -> int:
    """Print or write the tables."""
    options = read_options()
    clients, absent = chosen_clients(options)
    others_cores = busy_cores()
    loads = [replace(load, num_tokens=NUM_SMOKE_TOKENS) for load in LOADS] if options.smoke else LOADS
    began_s = time.monotonic()
    runs, failed = measure(
        list(clients.values()), loads, num_repetitions=options.repetitions, seed=options.seed, smoke=options.smoke
    )
    took_s = time.monotonic() - began_s
    study = Study(
        loads=loads,
        clients=list(clients),
        runs=runs,
        problems=[*absent, *failed],
        facts=[*facts(options, clients, others_cores), ("took", f"{took_s:.0f} s")],
        ours="`loop`, `/v1/completions`",
        baseline="`sglang.bench_serving`",
    )
    made = measured(study)
    print(f"\n{made}")
    if options.write:
        PAGE.write_text(put(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
