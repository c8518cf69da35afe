"""The doctor: every check in order, and whether this machine can give a measurement that can be believed."""

from collections import Counter
from collections.abc import Callable

from loop import checks, plugins
from loop.checks import STAGES, Check, Finding, Setup
from loop.errors import LoopError
from loop.record import Record


class Diagnosis(Record):
    """Every finding, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        """Whether a round may start."""
        return not any(finding.status == "unfit" for finding in self.findings)

    @property
    def counts(self) -> dict[str, int]:
        """Status → number of findings."""
        return dict(Counter(finding.status for finding in self.findings))


def load_checks() -> tuple[Check, ...]:
    """Every check, by stage and then by name."""
    found = [plugins.load(checks, name, Check)() for name in plugins.available(checks)]
    return tuple(sorted(found, key=lambda check: (STAGES.index(check.stage), check.name)))


def examine(setup: Setup, tell: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Run every check, one after another: two at once would disturb each other. `tell` hears each one's name."""
    findings: list[Finding] = []
    for check in load_checks():
        tell(check.name)
        findings += _findings(check, setup)
    return Diagnosis(findings=tuple(findings))


def _findings(check: Check, setup: Setup) -> list[Finding]:
    """What a check found; what it could not look at for an error is unfit, with the error's own way out."""
    found: list[Finding] = []
    try:
        found.extend(check.find(setup))
    except LoopError as problem:
        found.append(check.unfit(problem.what, problem.next))
    except OSError as problem:
        found.append(check.unfit(f"could not look: {problem}", "restore the right to read it"))
    return found
