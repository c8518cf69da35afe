"""A round as Markdown, and the ledger summed up."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from loop.bundles import differences
from loop.compare import Comparison
from loop.ledger import Round, write_atomically
from loop.record import Record

PHASES = ("launch", "warmup", "check", "timed", "stop", "overhead")


class Best(Record):
    """The best improved round of one class."""

    score_class: str
    round: str
    bundle: str
    speedup: float


class Summary(Record):
    """The ledger in short."""

    num_rounds: int
    outcomes: dict[str, int]
    """Verdict → count; `none` for rounds that failed or run."""
    failures: dict[str, int]
    """Reason code of everything that did not improve → count."""
    best: tuple[Best, ...]
    """Best speedup by class among rounds that improved with every gate passed."""


def write_report(reports: Path, round_: Round) -> Path:
    """`reports/<round>.md`; returns its path."""
    path = report_path(reports, round_)
    write_atomically(path, render_round(round_).encode())
    return path


def report_path(reports: Path, round_: Round) -> Path:
    """Where a round's report is."""
    return reports / f"{round_.id}-{round_.candidate.bundle}.md"


def render_round(round_: Round) -> str:
    """A closed round as Markdown."""
    loader = PackageLoader("loop")
    environment = Environment(loader=loader, autoescape=False, undefined=StrictUndefined)  # noqa: S701 - Markdown
    return environment.get_template("round.md.j2").render(
        round=round_,
        changes=differences(round_.baseline.content, round_.candidate.content),
        arm=_arm_value,
        phases=PHASES,
    )


def summarize(rounds: Sequence[Round]) -> Summary:
    """Counts by verdict and reason, and the best of each class."""
    outcomes = Counter(r.verdict.outcome if r.verdict else "none" for r in rounds)
    failures: Counter[str] = Counter()
    best: dict[str, Best] = {}
    for round_ in rounds:
        if round_.failure:
            failures[round_.failure.kind] += 1
        elif round_.verdict and round_.verdict.outcome != "improved":
            failures[round_.verdict.reason] += 1
        if not round_.promotable:
            continue
        for comparison in round_.comparisons:
            held = best.get(comparison.scope)
            if comparison.scope.startswith("class:") and (held is None or comparison.speedup > held.speedup):
                best[comparison.scope] = Best(
                    score_class=comparison.scope.removeprefix("class:"),
                    round=round_.id,
                    bundle=round_.candidate.bundle,
                    speedup=comparison.speedup,
                )
    return Summary(
        num_rounds=len(rounds),
        outcomes=dict(outcomes),
        failures=dict(failures.most_common()),
        best=tuple(best[scope] for scope in sorted(best)),
    )


def _arm_value(comparison: Comparison, arm: str) -> str:
    """The sessions' values of one arm, in the comparison's unit."""
    values = [value for label, value in comparison.sessions.items() if label.startswith(arm)]
    digits = ".4g"
    return f"{' / '.join(format(value, digits) for value in values)} {comparison.unit}"
