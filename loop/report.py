"""A round as Markdown, and the ledger summed up."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from loop.bundles import differences
from loop.compare import Comparison
from loop.durable import write_atomically
from loop.ledger import Round
from loop.record import Record
from loop.wording import count

PHASES = ("launch", "warmup", "check", "timed", "stop", "overhead")
CONDITIONS: dict[str, str] = {
    "environment": ", once that is mended",
    "internal": "; if it fails again, that is a bug of `loop`",
}
"""Kind of failure → what to say after the command that tries the round again."""


class Best(Record):
    """The best improved round of one class."""

    score_class: str
    round: str
    bundle: str
    speedup: float
    confirmed: bool
    """Whether this is a confirmation's number; a first win looks better than it is."""


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
    """`reports/<round>-<bundle>.md`; returns its path."""
    path = report_path(reports, round_)
    write_atomically(path, render_round(round_).encode())
    return path


def report_path(reports: Path, round_: Round) -> Path:
    """Where a round's report is."""
    return reports / f"{round_.id}-{round_.candidate.bundle}.md"


def render_round(round_: Round) -> str:
    """A round as Markdown: its verdict, or its failure with the sessions it has and the next command."""
    loader = PackageLoader("loop")
    environment = Environment(loader=loader, autoescape=False, undefined=StrictUndefined)  # noqa: S701 - Markdown
    return environment.get_template("round.md.j2").render(
        round=round_,
        changes=differences(round_.baseline.content, round_.candidate.content),
        arm=_arm_value,
        phases=PHASES,
        again=_again(round_),
        count=count,
    )


def summarize(rounds: Sequence[Round]) -> Summary:
    """Counts by verdict and reason, and the best of each class; a win's confirmation takes its place.

    Calibrations are no attempts.
    """
    outcomes = Counter(r.verdict.outcome if r.verdict else "none" for r in rounds)
    failures: Counter[str] = Counter()
    best: dict[str, Best] = {}
    superseded = {r.confirms for r in rounds if r.confirms and r.verdict and r.verdict.outcome != "invalid"}
    for round_ in rounds:
        if round_.purpose == "calibration":
            continue
        if round_.failure:
            failures[round_.failure.kind] += 1
        elif round_.verdict and round_.verdict.outcome != "improved":
            failures[round_.verdict.reason] += 1
        if not round_.promotable or round_.id in superseded:
            continue
        for comparison in round_.comparisons:
            held = best.get(comparison.scope)
            if comparison.scope.startswith("class:") and (held is None or comparison.speedup > held.speedup):
                best[comparison.scope] = Best(
                    score_class=comparison.scope.removeprefix("class:"),
                    round=round_.id,
                    bundle=round_.candidate.bundle,
                    speedup=comparison.speedup,
                    confirmed=round_.confirms is not None,
                )
    return Summary(
        num_rounds=len(rounds),
        outcomes=dict(outcomes),
        failures=dict(failures.most_common()),
        best=tuple(best[scope] for scope in sorted(best)),
    )


def _again(round_: Round) -> str:
    """What to type to try a failed round once more, and when."""
    command = shlex.join(["loop", *(round_.argv or ("run", round_.candidate.bundle))])
    return f"`{command}`{CONDITIONS.get(round_.failure.kind, '') if round_.failure else ''}"


def _arm_value(comparison: Comparison, arm: str) -> str:
    """The sessions' values of one arm, in the comparison's unit."""
    values = [value for label, value in comparison.sessions.items() if label.startswith(arm)]
    digits = ".4g"
    return f"{' / '.join(format(value, digits) for value in values)} {comparison.unit}"
