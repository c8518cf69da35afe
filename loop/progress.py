"""What a person sees while a round runs: a live view on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from loop.console import err
from loop.plan import Plan
from loop.prediction import predict
from loop.watch import Watcher
from loop.wording import count

PLAIN_EVERY_S = 10.0


class PlainWatcher(Watcher):
    """Progress as lines on stderr, at most one every ten seconds within a phase: for logs and CI."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._label = ""
        self._phase = ""
        self._num_requests = 0
        self._said_at = 0.0

    def session(self, label: str, bundle: str) -> None:
        """One line per session."""
        self._label = label
        self._say(f"session {label}: {bundle}")

    def phase(self, name: str, num_requests: int = 0) -> None:
        """One line per phase."""
        self._phase, self._num_requests = name, num_requests
        self._say(f"{self._label}: {name}" + (f", {count(num_requests, 'request')}" if num_requests else ""))

    def traffic(self, num_done: int, num_reads: int) -> None:
        """A line every ten seconds."""
        if time.monotonic() - self._said_at >= PLAIN_EVERY_S:
            requests = f"{num_done}/{count(self._num_requests, 'request')}"
            self._say(f"{self._label}: {self._phase}, {requests}, {count(num_reads, 'read')}")

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
        self._predicted_s = predict(plan).total_s
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

    def session(self, label: str, bundle: str) -> None:
        """Mark the session before as done and this one as running; an undecided round adds rows."""
        if self._label:
            self._rows[self._label][2] = "done"
        self._label = label
        self._started[label] = time.monotonic()
        self._rows.setdefault(label, [label, "", "", ""])[1] = bundle

    def phase(self, name: str, num_requests: int = 0) -> None:
        """A new bar."""
        self._rows[self._label][2] = name
        self._phase_since = time.monotonic()
        self._bar.reset(self._task, description=name, total=num_requests or None, rate="")

    def traffic(self, num_done: int, num_reads: int) -> None:
        """Move the bar."""
        rate = num_reads / max(0.001, time.monotonic() - self._phase_since)
        self._bar.update(self._task, completed=num_done, rate=f"{rate:,.0f} reads/s")

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
