"""What a person sees in a terminal: progress, verdict tables, the ledger. The only place that uses rich."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from loop.compare import Comparison
from loop.judge import LETTERS, Verdict
from loop.ledger import Round
from loop.plan import Plan
from loop.report import Summary
from loop.shipped import Shipped
from loop.watch import Watcher

OUTCOME_STYLES = {
    "improved": "bold green",
    "regressed": "bold red",
    "no_change": "bold",
    "inconclusive": "bold yellow",
    "invalid": "bold magenta",
}
PLAIN_EVERY_S = 10.0

out = Console(highlight=False, soft_wrap=False)
err = Console(stderr=True, highlight=False)


class PlainWatcher(Watcher):
    """Progress as lines on stderr, at most one every ten seconds within a phase: for logs and CI."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._label = ""
        self._phase = ""
        self._num_requests = 0
        self._said_at = 0.0

    def session(self, label: str, bundle: str, index: int, total: int) -> None:
        """One line per session."""
        self._label = label
        self._say(f"session {label} ({index} of {total}): {bundle}")

    def phase(self, name: str, num_requests: int = 0) -> None:
        """One line per phase."""
        self._phase, self._num_requests = name, num_requests
        self._say(f"{self._label}: {name}" + (f", {num_requests} requests" if num_requests else ""))

    def traffic(self, num_done: int, num_tokens: int) -> None:
        """A line every ten seconds."""
        if time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._say(f"{self._label}: {self._phase}, {num_done}/{self._num_requests} requests, {num_tokens} tokens")

    def log(self, line: str) -> None:
        """The server's last line, every ten seconds."""
        if time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            self._say(f"{self._label}: {self._phase}: {line[:160]}")

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(text)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        print(f"[{self._said_at - self._started:6.1f} s] {text}", file=sys.stderr, flush=True)


class LiveWatcher(Watcher):
    """A live view: every session with its phase, a bar for the traffic in flight, the server's last log line."""

    def __init__(self, plan: Plan) -> None:
        self._rows = {s.label: [s.label, "", "waiting", ""] for s in plan.sessions}
        self._started: dict[str, float] = {}
        self._label = ""
        self._line = ""
        self._predicted_s = plan.predicted_s()
        self._since = time.monotonic()
        self._bar = Progress(
            TextColumn("  {task.description:<24}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=err,
        )
        self._task = self._bar.add_task("", total=None, rate="")
        self._phase_since = time.monotonic()
        self._live = Live(get_renderable=self._render, console=err, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def session(self, label: str, bundle: str, index: int, total: int) -> None:
        """Mark the session before as done and this one as running."""
        if self._label:
            self._rows[self._label][2] = "done"
        self._label = label
        self._started[label] = time.monotonic()
        self._rows[label][1] = bundle

    def phase(self, name: str, num_requests: int = 0) -> None:
        """A new bar."""
        self._rows[self._label][2] = name
        self._phase_since = time.monotonic()
        self._bar.reset(self._task, description=name, total=num_requests or None, rate="")

    def traffic(self, num_done: int, num_tokens: int) -> None:
        """Move the bar."""
        rate = num_tokens / max(0.001, time.monotonic() - self._phase_since)
        self._bar.update(self._task, completed=num_done, rate=f"{rate:,.0f} tok/s")

    def log(self, line: str) -> None:
        """Keep the server's last line."""
        self._line = line

    def note(self, text: str) -> None:
        """A line above the live view, which stays."""
        self._live.console.print(Text(text))

    def _render(self) -> RenderableType:
        elapsed = time.monotonic() - self._since
        table = Table(box=None, padding=(0, 1), show_header=False)
        for label, bundle, phase, _ in self._rows.values():
            seconds = f"{time.monotonic() - self._started[label]:.0f} s" if label == self._label else ""
            style = "bold" if label == self._label else "dim" if phase in ("waiting", "done") else ""
            table.add_row(label, bundle, phase, seconds, style=style)
        left = max(0.0, self._predicted_s - elapsed)
        head = Text(f"elapsed {elapsed:.0f} s, about {left / 60:.0f} min left", style="cyan")
        tail = Text(self._line, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(head, table, self._bar, tail)


def show_plan(plan: Plan) -> None:
    """Sessions, requests and predicted minutes."""
    out.print(
        f"candidate  [bold]{plan.candidate.bundle}[/] {plan.candidate.sha256[:16]}: {escape(plan.bundle.hypothesis)}"
    )
    out.print(f"baseline   [bold]{plan.baseline.bundle}[/] {plan.baseline.sha256[:16]}")
    out.print(f"suite      {plan.suite.id} {plan.suite.sha256[:16]}, protocol {plan.protocol}")
    out.print(f"engine     {plan.engine.name} {plan.engine_version} on {plan.host.device}")
    out.print(f"model      {plan.model} {plan.model_sha256[:16]}", soft_wrap=True)
    table = Table(box=None, padding=(0, 2))
    for heading in ("session", "bundle", "steps"):
        table.add_column(heading)
    for session in plan.sessions:
        arm = plan.baseline if session.arm == "A" else plan.candidate
        steps = f"warm-up, {', '.join(dict.fromkeys(step.workload or 'check' for step in session.steps))}"
        table.add_row(session.label, arm.bundle, steps)
    out.print(table)
    out.print(f"{plan.num_requests} requests, about {plan.predicted_s() / 60:.1f} minutes")


def show_round(round_: Round) -> None:
    """The verdict first, then speed, gates, caveats and score."""
    if round_.verdict:
        out.print(verdict_line(round_.verdict))
    elif round_.failure:
        out.print(Text.assemble(("no verdict", "bold magenta"), f": {round_.failure.kind}: {round_.failure.message}"))
    else:
        out.print("[bold]running[/]")
    if round_.comparisons:
        out.print(_speed_table(round_.comparisons))
    for gate in round_.gates:
        style = {"passed": "green", "refused": "bold red"}.get(gate.outcome, "bold magenta")
        _line(gate.outcome, style, f"{gate.gate}: {gate.text}")
    for caveat in round_.caveats:
        _line("caveat", "yellow", f"{caveat.text}; {caveat.advice}")
    if round_.score:
        _line("score", "bold", f"{round_.score.score:.3f}")


def show_next(report: Path, command: str) -> None:
    """Where to read on, and the one command to type next."""
    _line("report", "bold", str(report))
    _line("next", "bold", command)


def _line(label: str, style: str, text: str) -> None:
    """A label and its text, the text wrapped beside the label."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=13, justify="right", style=style)
    table.add_column(overflow="fold")
    table.add_row(label, Text(text))  # not markup: `[warmup]` is a word here
    out.print(table)


def verdict_line(verdict: Verdict) -> Text:
    """`improved (measured): ...`, coloured."""
    refused = f", refused by {', '.join(verdict.refused_by)}" if verdict.refused_by else ""
    head = (f"{verdict.outcome} ({verdict.reason}{refused})", OUTCOME_STYLES[verdict.outcome])
    return Text.assemble(head, f": {verdict.text}")


def show_rounds(rounds: Sequence[Round]) -> None:
    """One line per round, newest last."""
    table = Table(box=None, padding=(0, 1))
    table.add_column("")
    table.add_column("round")
    table.add_column("candidate", overflow="fold")
    table.add_column("against", overflow="fold")
    table.add_column("suite")
    table.add_column("effect", justify="right")
    table.add_column("score", justify="right")
    table.add_column("reason", overflow="fold")
    for round_ in rounds:
        overall = round_.comparisons[-1] if round_.comparisons else None
        verdict = round_.verdict
        table.add_row(
            Text(LETTERS[verdict.outcome], OUTCOME_STYLES[verdict.outcome]) if verdict else "!",
            round_.id,
            round_.candidate.bundle,
            round_.baseline.bundle,
            round_.suite.id,
            f"{overall.effect_pct:+.1f} %" if overall else "",
            f"{round_.score.score:.3f}" if round_.score else "",
            verdict.reason if verdict else round_.failure.kind if round_.failure else round_.status,
        )
    out.print(table)
    out.print("[dim]+ improved  - regressed  = no change  ? inconclusive  x invalid  ! no verdict[/]")


def show_summary(summary: Summary, rounds: Sequence[Round], shipped: Shipped) -> None:
    """The ledger in short: what is shipped, the best by class, failures by reason, every round."""
    for device, entry in shipped.devices.items():
        out.print(f"shipped on {device}: [bold]{entry.bundle}[/] {entry.sha256[:16]}, proven by {entry.round}")
    if not shipped.devices:
        out.print("shipped: nothing; the original is served")
    for best in summary.best:
        out.print(f"best {best.score_class}: {best.speedup:.3f}x by [bold]{best.bundle}[/] in {best.round}")
    if summary.failures:
        listed = ", ".join(f"{count} {reason}" for reason, count in summary.failures.items())
        out.print(f"did not improve: {listed}")
    if rounds:
        show_rounds(rounds)
    else:
        out.print("no rounds yet; next: loop run BUNDLE")


def _speed_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("scope", no_wrap=True)
    for heading in ("speedup", "effect", "95 % interval", "MDE", "A drift"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for c in comparisons:
        style = {"improved": "green", "regressed": "red"}.get(c.outcome, "")
        table.add_row(
            c.scope,
            f"{c.speedup:.3f}x",
            f"{c.effect_pct:+.1f} %",
            f"{c.low_pct:+.1f}..{c.high_pct:+.1f}",
            f"{c.mde_pct:.1f} %",
            Text(f"{c.drift_pct:.1f} %", "magenta" if c.drifted else ""),
            Text(c.outcome, style),
        )
    return table
