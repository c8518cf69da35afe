"""A comparison: B against A, and A against itself, with an interval. Sessions are the samples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

from loop import metrics, plugins
from loop.measure import replies_of
from loop.metrics import Metric
from loop.record import Record
from loop.session import Session
from loop.stats import Estimate, Outcome, estimate, geometric_mean, to_pct
from loop.suites import LoadedSuite

OVERALL = "all"


class Comparison(Record):
    """B against A for one workload, one class of workloads, or all. Positive is better whatever the metric."""

    scope: str
    """A workload's id, `class:sequential`, `class:concurrent`, or `all`."""
    metric: str
    unit: str
    better: Literal["lower", "higher"]
    sessions: dict[str, float]
    """Session label → its value in `unit`: the median of its passes; for a class, the geometric mean of workloads."""
    speedup: float
    """The seed's score input: pooled A median over B median; for a class, the geometric mean of workloads."""
    effect_pct: float
    """mean(B) - mean(A) of log values, oriented, as a relative change."""
    low_pct: float
    high_pct: float
    """95 % t interval of the effect."""
    sigma_pct: float
    """Noise of one session: from earlier sessions that served the same thing, and the prior."""
    dof: int
    """Degrees of freedom behind sigma, the prior's four included."""
    min_effect_pct: float
    """What counts as relevant: 1 %, or one sigma where that is more."""
    mde_pct: float
    """The effect this round could tell from none with power 0.8."""
    drift_pct: float
    """|first A - last A|."""
    drift_limit_pct: float
    drifted: bool
    """A moved more than noise explains: the bracket proves nothing."""
    futile: bool
    """B is so far behind that no further session could save it."""
    outcome: Outcome


def load_metric(name: str, **settings: float) -> Metric:
    """The metric plugin called `name`, with these settings."""
    return plugins.load(metrics, name, Metric)(**settings)


def compare(
    suite: LoadedSuite,
    sessions: Sequence[Session],
    raw: Path,
    *,
    history: Mapping[str, Sequence[Sequence[float]]],
    prior_sigma_pct: float,
) -> tuple[Comparison, ...]:
    """Every workload, every class, and all of them; empty if an arm has a workload without a value.

    `history` maps a scope to groups of log values: earlier sessions that served the same thing. Classes weigh the same
    in `all`, as in the score.
    """
    passes = {session.label: _pass_values(suite, session, raw) for session in sessions}
    if not {s.arm for s in sessions} >= {"A", "B"} or any(
        None in values for p in passes.values() for values in p.values()
    ):
        return ()
    arms = {session.label: session.arm for session in sessions}
    classes: dict[str, list[Comparison]] = {}
    found: list[Comparison] = []
    for workload in suite.suite.workload:
        metric = load_metric(workload.objective, **workload.objective_settings)
        values = {label: [v for v in p[workload.id] if v is not None] for label, p in passes.items()}
        ratio = median(v for label, vs in values.items() if arms[label] == "A" for v in vs) / median(
            v for label, vs in values.items() if arms[label] == "B" for v in vs
        )
        comparison = _judge_scope(
            workload.id,
            workload.objective,
            metric.unit,
            {label: median(vs) for label, vs in values.items()},
            arms,
            better=metric.better,
            speedup=ratio if metric.better == "lower" else 1 / ratio,
            groups=history.get(workload.id, ()),
            prior_sigma_pct=prior_sigma_pct,
        )
        found.append(comparison)
        classes.setdefault(f"class:{workload.score_class}", []).append(comparison)
    totals = [_combine(scope, members, arms, history, prior_sigma_pct) for scope, members in sorted(classes.items())]
    return (*found, *totals, _combine(OVERALL, totals, arms, history, prior_sigma_pct))


def equal_sessions(comparisons: Sequence[Comparison], *, identical: bool) -> dict[str, list[tuple[float, ...]]]:
    """Scope → groups of log values of a round's sessions that served the same thing, for later rounds' noise.

    The As are one group and the Bs another; where the candidate is the baseline, all are one.
    """
    found: dict[str, list[tuple[float, ...]]] = {}
    for comparison in comparisons:
        groups: dict[str, list[float]] = {}
        for label, value in comparison.sessions.items():
            groups.setdefault("" if identical else label[0], []).append(math.log(value))
        found[comparison.scope] = [tuple(group) for group in groups.values() if len(group) > 1]
    return found


def _pass_values(suite: LoadedSuite, session: Session, raw: Path) -> dict[str, list[float | None]]:
    """Workload → its objective in each timed pass; [None] where the session has none."""
    found: dict[str, list[float | None]] = {}
    for workload in suite.suite.workload:
        metric = load_metric(workload.objective, **workload.objective_settings)
        measured = session.measured("timed", workload.id)
        found[workload.id] = [metric.value(replies_of(m, raw)) for m in measured] or [None]
    return found


def _combine(
    scope: str,
    members: Sequence[Comparison],
    arms: Mapping[str, str],
    history: Mapping[str, Sequence[Sequence[float]]],
    prior_sigma_pct: float,
) -> Comparison:
    """Several comparisons as one: the geometric mean of their oriented session values."""
    values = {
        label: geometric_mean([m.sessions[label] if m.better == "lower" else 1 / m.sessions[label] for m in members])
        for label in members[0].sessions
    }
    return _judge_scope(
        scope,
        "cost",
        "relative",
        values,
        arms,
        better="lower",
        speedup=geometric_mean([m.speedup for m in members]),
        groups=history.get(scope, ()),
        prior_sigma_pct=prior_sigma_pct,
    )


def _judge_scope(
    scope: str,
    metric: str,
    unit: str,
    values: Mapping[str, float],
    arms: Mapping[str, str],
    *,
    better: Literal["lower", "higher"],
    speedup: float,
    groups: Sequence[Sequence[float]],
    prior_sigma_pct: float,
) -> Comparison:
    """The estimate of one scope, in per cent."""
    sign = 1 if better == "lower" else -1
    logs = {label: sign * math.log(value) for label, value in values.items()}
    a = [value for label, value in logs.items() if arms[label] == "A"]
    b = [value for label, value in logs.items() if arms[label] == "B"]
    found: Estimate = estimate(a, b, groups, prior_sigma_pct / 100)
    return Comparison(
        scope=scope,
        metric=metric,
        unit=unit,
        better=better,
        sessions=dict(values),
        speedup=speedup,
        effect_pct=to_pct(found.effect),
        low_pct=to_pct(found.effect - found.half),
        high_pct=to_pct(found.effect + found.half),
        sigma_pct=found.sigma * 100,
        dof=found.dof,
        min_effect_pct=found.min_effect * 100,
        mde_pct=to_pct(found.mde),
        drift_pct=to_pct(found.drift),
        drift_limit_pct=to_pct(found.drift_limit),
        drifted=found.drifted,
        futile=found.futile,
        outcome=found.outcome,
    )
