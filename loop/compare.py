"""A comparison: B against A, and A against itself, with an interval. Sessions are the samples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from loop import metrics, plugins
from loop.measure import replies_of
from loop.metrics import Metric
from loop.record import Record
from loop.session import Session
from loop.stats import geometric_mean, minimum_detectable, pool_sigma, standard_error, t_quantile, to_pct
from loop.suites import LoadedSuite

MIN_EFFECT_PCT = 1.0
"""Smaller effects are not worth the change, however certain."""
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
    """Noise of one session: from stored A/A pairs and the prior."""
    num_pairs: int
    """Stored A/A pairs behind sigma."""
    mde_pct: float
    """The effect this round could tell from none with power 0.8."""
    drift_pct: float
    """|A_first - A_last|."""
    drift_limit_pct: float

    @property
    def min_effect_pct(self) -> float:
        """What counts as relevant: 1 %, or one σ where that is more."""
        return max(MIN_EFFECT_PCT, self.sigma_pct)

    @property
    def drifted(self) -> bool:
        """A moved more than noise explains: the bracket proves nothing."""
        return self.drift_pct > self.drift_limit_pct

    @property
    def outcome(self) -> Literal["improved", "regressed", "no_change", "inconclusive"]:
        """`improved`, `regressed`, `no_change` or `inconclusive`, from the interval and the relevant effect."""
        if self.low_pct > 0 and self.effect_pct >= self.min_effect_pct:
            return "improved"
        if self.high_pct < 0 and self.effect_pct <= -self.min_effect_pct:
            return "regressed"
        if -self.min_effect_pct <= self.low_pct and self.high_pct <= self.min_effect_pct:
            return "no_change"
        return "inconclusive"


def load_metric(name: str) -> Metric:
    """The metric plugin called `name`."""
    return plugins.load(metrics, name, Metric)()


def compare(
    suite: LoadedSuite,
    sessions: Sequence[Session],
    raw: Path,
    *,
    history: Mapping[str, Sequence[float]],
    prior_sigma_pct: float,
) -> tuple[Comparison, ...]:
    """Every workload, every class, and all of them; empty if an arm has a workload without a value.

    `history` maps a scope to the log differences of stored A/A pairs. Classes weigh the same in `all`, as in the score.
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
        metric = load_metric(workload.objective)
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
            differences=history.get(workload.id, ()),
            prior_sigma_pct=prior_sigma_pct,
        )
        found.append(comparison)
        classes.setdefault(f"class:{workload.score_class}", []).append(comparison)
    totals = [_combine(scope, members, arms, history, prior_sigma_pct) for scope, members in sorted(classes.items())]
    return (*found, *totals, _combine(OVERALL, totals, arms, history, prior_sigma_pct))


def pair_differences(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Scope → the log difference of a round's first and last A session: one more A/A pair for the history."""
    found = {}
    for comparison in comparisons:
        labels = [label for label in comparison.sessions if label.startswith("A")]
        if len(labels) >= 2:
            first, last = comparison.sessions[labels[0]], comparison.sessions[labels[-1]]
            found[comparison.scope] = math.log(first) - math.log(last)
    return found


def _pass_values(suite: LoadedSuite, session: Session, raw: Path) -> dict[str, list[float | None]]:
    """Workload → its objective in each timed pass; [None] where the session has none."""
    found: dict[str, list[float | None]] = {}
    for workload in suite.suite.workload:
        metric = load_metric(workload.objective)
        measured = session.measured("timed", workload.id)
        found[workload.id] = [metric.value(replies_of(m, raw)) for m in measured] or [None]
    return found


def _combine(
    scope: str,
    members: Sequence[Comparison],
    arms: Mapping[str, str],
    history: Mapping[str, Sequence[float]],
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
        differences=history.get(scope, ()),
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
    differences: Sequence[float],
    prior_sigma_pct: float,
) -> Comparison:
    """The t interval of one scope."""
    logs = {label: math.log(value) for label, value in values.items()}
    a = [value for label, value in logs.items() if arms[label] == "A"]
    b = [value for label, value in logs.items() if arms[label] == "B"]
    sigma, dof = pool_sigma(differences, prior_sigma_pct / 100)
    error = standard_error(sigma, len(a), len(b))
    effect = fmean(a) - fmean(b) if better == "lower" else fmean(b) - fmean(a)
    half = t_quantile(0.975, dof) * error
    mde = minimum_detectable(error, dof)
    # Beyond 3 sigma of the difference of two sessions, or beyond what matters and can be seen, whichever is less.
    drift_limit = min(3 * math.sqrt(2) * sigma, max(0.02, mde))
    return Comparison(
        scope=scope,
        metric=metric,
        unit=unit,
        better=better,
        sessions=dict(values),
        speedup=speedup,
        effect_pct=to_pct(effect),
        low_pct=to_pct(effect - half),
        high_pct=to_pct(effect + half),
        sigma_pct=sigma * 100,
        num_pairs=len(differences),
        mde_pct=to_pct(mde),
        drift_pct=to_pct(abs(a[-1] - a[0])),
        drift_limit_pct=to_pct(drift_limit),
    )
