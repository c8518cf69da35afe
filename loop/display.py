"""What a person sees in a terminal: plans, verdicts, the ledger."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loop.calibration import Floor
from loop.compare import Comparison
from loop.console import out
from loop.contrast import Contrast
from loop.judge import LETTERS, Verdict
from loop.ledger import Round
from loop.plan import Plan
from loop.prediction import predict
from loop.report import Summary
from loop.shipped import Shipped
from loop.wording import count

OUTCOME_STYLES = {
    "improved": "bold green",
    "regressed": "bold red",
    "no_change": "bold",
    "inconclusive": "bold yellow",
    "invalid": "bold magenta",
}
LEGEND = "+ improved  - regressed  = no change  ? inconclusive"


def show_plan(plan: Plan) -> None:
    """Sessions, requests and predicted minutes."""
    out.print(
        f"candidate  [bold]{plan.candidate.bundle}[/] {plan.candidate.sha256[:16]}: {escape(plan.bundle.hypothesis)}"
    )
    out.print(f"baseline   [bold]{plan.baseline.bundle}[/] {plan.baseline.sha256[:16]}")
    if plan.candidate.sha256 == plan.baseline.sha256:
        out.print("           the same content: whatever is measured, it will be no_change", style="magenta")
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
    prediction = predict(plan)
    minutes = f"about {prediction.total_s / 60:.1f} minutes ({prediction.basis})"
    out.print(f"{count(plan.num_requests, 'request')}, {minutes}")


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
        out.print(f"[dim]{LEGEND}[/]")
    for gate in round_.gates:
        style = {"passed": "green", "refused": "bold red"}.get(gate.outcome, "bold magenta")
        _line(gate.outcome, style, f"{gate.gate}: {gate.text}")
    for caveat in round_.caveats:
        _line("caveat", "yellow", f"{caveat.text}; {caveat.advice}")
    if round_.score:
        _line("score", "bold", f"{round_.score.score:.3f}")


def show_next(report: Path, command: str) -> None:
    """Where to read on, and the one command to type next."""
    for label, text in (("report", str(report)), ("next", command)):
        out.print(Text.assemble((f"{label:>13}", "bold"), f" {text}"), soft_wrap=True)  # to be copied: never folded


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
            _reason(round_),
        )
    out.print(table)
    out.print(f"[dim]{LEGEND}  x invalid  ! no verdict[/]")


def _reason(round_: Round) -> str:
    """Why the round came out as it did, and what it was if it was not a first try."""
    reason = round_.verdict.reason if round_.verdict else round_.failure.kind if round_.failure else round_.status
    if round_.confirms:
        return f"{reason}, confirms {round_.confirms}"
    return reason if round_.purpose == "candidate" else f"{reason}, {round_.purpose}"


def show_summary(summary: Summary, rounds: Sequence[Round], shipped: Shipped) -> None:
    """The ledger in short: what is shipped, the best by class, failures by reason, every round."""
    for device, entry in shipped.devices.items():
        out.print(f"shipped on {device}: {entry}", markup=False)
    if not shipped.devices:
        out.print("shipped: nothing; the original is served")
    for best in summary.best:
        proof = "" if best.confirmed else ", not confirmed"
        out.print(f"best {best.score_class}: {best.speedup:.3f}x by [bold]{best.bundle}[/] in {best.round}{proof}")
    if summary.failures:
        listed = ", ".join(f"{number} {reason}" for reason, number in summary.failures.items())
        out.print(f"did not improve: {listed}")
    if rounds:
        show_rounds(rounds)
    else:
        out.print("no rounds yet; next: loop run BUNDLE")


def show_floors(floors: Sequence[Floor]) -> None:
    """The noise of one session by scope, and what it lets a round certify."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("scope", no_wrap=True)
    for heading in ("noise", "d.o.f.", *(f"+{effect} %" for effect in floors[0].num_sessions)):
        table.add_column(heading, justify="right", no_wrap=True)
    for floor in floors:
        needed = [str(number) if number else "-" for number in floor.num_sessions.values()]
        table.add_row(floor.scope, f"{floor.sigma_pct:.2f} %", str(floor.dof), *needed)
    out.print(table)
    out.print("[dim]sessions that certify an effect with power 0.8; -: below the noise, or over 99 sessions[/]")


def show_contrast(first: Round, second: Round, found: Sequence[Contrast]) -> None:
    """The two candidates' effects and their difference."""
    baseline = first.baseline.bundle
    for number, round_ in ((1, first), (2, second)):
        out.print(f"{number}  [bold]{round_.candidate.bundle}[/] against {baseline} in {round_.id}")
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("scope", no_wrap=True)
    for heading in ("1", "2", "2 against 1", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for item in found:
        table.add_row(
            item.scope,
            f"{item.first_pct:+.1f} %",
            f"{item.second_pct:+.1f} %",
            f"{item.effect_pct:+.1f} %",
            f"{item.low_pct:+.1f}..{item.high_pct:+.1f}",
        )
    out.print(table)


def _speed_table(comparisons: Sequence[Comparison]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("scope", no_wrap=True)
    for heading in ("speedup", "effect", "95 % interval", "MDE", "A drift"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for c in comparisons:
        outcome = "invalid" if c.drifted else c.outcome
        style = {"improved": "green", "regressed": "red"}.get(outcome, "")
        table.add_row(
            c.scope,
            f"{c.speedup:.3f}x",
            f"{c.effect_pct:+.1f} %",
            f"{c.low_pct:+.1f}..{c.high_pct:+.1f}",
            f"{c.mde_pct:.1f} %",
            Text(f"{c.drift_pct:.1f} %", "magenta" if c.drifted else ""),
            Text(LETTERS[outcome], style),
        )
    return table
