"""The measured part of docs/client-speed.md."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.perf.client_load import Load
from tests.perf.client_runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "client-speed.md"
PART = re.compile(r"(<!-- client-speed: measured -->\n).*?(<!-- end -->)", re.DOTALL)
BUSY_CORES = 0.9
"""A single thread that uses so much of a core is what the others wait for."""


@dataclass(frozen=True)
class Study:
    """Everything that was measured, and where."""

    loads: Sequence[Load]
    clients: Sequence[str]
    """In the order of the tables."""
    runs: Sequence[Run]
    problems: Sequence[tuple[str, str]]
    """(client, why it is not in a table, or not in all runs)."""
    facts: Sequence[tuple[str, str]]
    """(what, value): the machine, the command, the date."""
    ours: str
    baseline: str
    """The client that the ceiling is held against."""

    def values(self, client: str, load: str, read: Callable[[Run], float]) -> list[float]:
        """One for each run."""
        return [read(run) for run in self.runs if (run.client, run.load) == (client, load)]

    def middle(self, client: str, load: str, read: Callable[[Run], float]) -> float | None:
        """The median over runs; None if there was none."""
        values = self.values(client, load, read)
        return median(values) if values else None


Column = tuple[str, Callable[[Run], float], int]
"""Heading, value, decimals."""


def measured(study: Study) -> str:
    """Facts, a table for each load, the targets, and what could not be measured."""
    parts = [table(["fact", "value"], study.facts)]
    for load in study.loads:
        parts += [f"### {load.name}", about(load), by_client(study, load)]
    parts += ["### Targets", targets(study)]
    if study.problems:
        rows = [(client, " ".join(why.split()).replace("|", "\\|")) for client, why in study.problems]
        parts += ["### What did not run", table(["client", "why"], rows)]
    return "\n\n".join(parts)


def about(load: Load) -> str:
    """The load in a sentence."""
    asked = f"{load.num_streams} streams, answers of {load.num_tokens} tokens, "
    if load.unlimited:
        return asked + "TTFT 0 and TPOT 0: the server sends an answer as fast as it can."
    return (
        f"{asked}true TTFT {load.ttft_ms:.2f} ms, true TPOT {load.tpot_ms:.2f} ms: "
        f"{load.offered_tokens_per_s:,.0f} tokens/s while all stream, {load.most_tokens_per_s:,.0f} with the waits for "
        "first tokens."
    )


def by_client(study: Study, load: Load) -> str:
    """A row for each client that ran."""
    columns = ceiling_columns() if load.unlimited else paced_columns(load)
    header = ["client", *(heading for heading, _, _ in columns)]
    if load.unlimited:
        header += [f"× {study.baseline}", "what was at its limit"]
    rows = []
    for client in study.clients:
        cells = [span(study.values(client, load.name, read), digits) for _, read, digits in columns]
        if load.unlimited:
            cells += [ratio(study, client, load), limit(study, client, load)]
        if study.values(client, load.name, speed):
            rows.append([client, *cells])
    return table(header, rows)


def paced_columns(load: Load) -> Sequence[Column]:
    """Where tokens leave on a schedule."""
    return (
        ("tokens/s delivered", speed, 0),
        (f"median TTFT, ms (true {load.ttft_ms:.2f})", ttft, 2),
        (f"median TPOT, ms (true {load.tpot_ms:.2f})", lambda run: run.tpot_p50_ms, 3),
        ("client CPU, µs/token", cpu, 1),
    )


def ceiling_columns() -> Sequence[Column]:
    """Where they leave as fast as they can: latencies say nothing there."""
    return (
        ("ceiling, tokens/s", speed, 0),
        ("client CPU, µs/token", cpu, 1),
        ("client, cores", lambda run: run.client_cores, 2),
        ("server, cores", lambda run: run.server_cores, 2),
    )


def speed(run: Run) -> float:
    """What most columns are about."""
    return run.tokens_per_s


def ttft(run: Run) -> float:
    """As reported."""
    return run.ttft_p50_ms


def cpu(run: Run) -> float:
    """What a token costs the client."""
    return run.cpu_us_per_token


def ratio(study: Study, client: str, load: Load) -> str:
    """Its ceiling over the baseline's."""
    mine, theirs = (study.middle(name, load.name, speed) for name in (client, study.baseline))
    return f"{mine / theirs:.1f}" if mine and theirs else ""


def limit(study: Study, client: str, load: Load) -> str:
    """Who had no time left. Where that is the server, the client's own ceiling is higher than the number."""
    client_is_busy = is_busy(study, client, load.name, lambda run: run.client_cores)
    if is_busy(study, client, load.name, lambda run: run.server_cores):
        return "**both**: at least" if client_is_busy else "**the fake server**: at least"
    return "the client" if client_is_busy else "neither: they wait for each other"


def is_busy(study: Study, client: str, load: str, read: Callable[[Run], float]) -> bool:
    """Whether so many cores are as many as a single thread can use."""
    return (study.middle(client, load, read) or 0.0) >= BUSY_CORES


def targets(study: Study) -> str:
    """The design's, each with what was measured."""
    full = next(load.name for load in reversed(study.loads) if not load.unlimited)
    most = next(load.name for load in study.loads if load.unlimited)
    cost = study.middle(study.ours, full, cpu)
    their_cost = study.middle(study.baseline, full, cpu)
    mine, theirs = (study.middle(name, most, speed) for name in (study.ours, study.baseline))
    ceiling = mine / theirs if mine and theirs else None
    enough = met(ceiling, 3, at_least=True)
    if ceiling and ceiling < 3 and is_busy(study, study.ours, most, lambda run: run.server_cores):
        enough = "**not shown**: the fake server could not send more"
    delivered, ttft_ms = study.middle(study.ours, full, speed), study.middle(study.ours, full, ttft)
    rows = [
        ("tokens/s delivered ≥ 12,600", number(delivered, 0), met(delivered, 12_600, at_least=True)),
        ("median TTFT ≤ 11.5 ms", number(ttft_ms, 2), met(ttft_ms, 11.5, at_least=False)),
        ("client CPU ≤ 12 µs/token", number(cost, 1), met(cost, 12, at_least=False)),
        (f"ceiling ≥ 3 × {study.baseline}", number(ceiling, 1), enough),
        (
            f"no target: CPU/token of {study.baseline} over ours",
            number(their_cost / cost if cost and their_cost else None, 1),
            "",
        ),
    ]
    said = f"Of {study.ours}; all at {full} but the ceiling."
    return said + "\n\n" + table(["target", "median of the runs", "met"], rows)


def number(value: float | None, digits: int) -> str:
    """For a table."""
    return "not measured" if value is None else f"{value:,.{digits}f}"


def met(value: float | None, bound: float, *, at_least: bool) -> str:
    """Whether the value is on the right side."""
    if value is None:
        return ""
    return "yes" if (value >= bound if at_least else value <= bound) else "**no**"


def span(values: Sequence[float], digits: int) -> str:
    """Median and range."""
    if not values:
        return ""
    shown = [f"{value:,.{digits}f}" for value in (median(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put(page: str, made: str) -> str:
    """The page with its measured part made anew; raises ValueError if it has none."""
    written, found = PART.subn(lambda match: f"{match[1]}\n{made}\n\n{match[2]}", page)
    if found != 1:
        raise ValueError(f"{PAGE}: {found} measured parts")
    return written
