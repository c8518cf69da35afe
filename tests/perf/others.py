"""How others call a winner: single runs, best of several, and tests on the requests of one server.

Requests: ln latency = prompt + session + residual; the same prompts meet every session. A rule ships B when it is
faster and, where the rule is a test, when p < 0.05 (two-sided).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tests.perf.campaign import Floats, log_gain

Wins = NDArray[np.bool_]

NUM_PROMPTS = 256
PROMPT_SD = 0.30
RESIDUAL_SD = 0.05
"""Of ln latency: between prompts, and between two runs of a prompt on one server."""
THRESHOLD_PCT = 2.0
ALPHA = 0.05
NUM_RESAMPLES = 999
BATCH = 20
"""Resamples held in memory at once; has no influence on the result."""


@dataclass(frozen=True)
class Arms:
    """ln latencies, shaped (rounds, sessions of the arm, prompts)."""

    a: Floats
    b: Floats

    @property
    def per_prompt(self) -> Floats:
        """How much faster B is for every prompt, averaged over sessions: (rounds, prompts)."""
        gains: Floats = self.a.mean(axis=1) - self.b.mean(axis=1)
        return gains


def draw_arms(rng: np.random.Generator, sigma: float, effect_pct: float, num: int, num_each: int) -> Arms:
    """`num` rounds with `num_each` sessions of each arm."""
    prompts = rng.normal(0.0, PROMPT_SD, (num, 1, NUM_PROMPTS))
    sessions = rng.normal(0.0, sigma, (num, 2 * num_each, 1))
    values = prompts + sessions + rng.normal(0.0, RESIDUAL_SD, (num, 2 * num_each, NUM_PROMPTS))
    return Arms(a=values[:, :num_each], b=values[:, num_each:] - log_gain(effect_pct))


def best_run(arms: Arms, _: np.random.Generator) -> Wins:
    """The best run of B against the best run of A."""
    wins: Wins = arms.b.mean(axis=2).min(axis=1) < arms.a.mean(axis=2).min(axis=1)
    return wins


def over_threshold(arms: Arms, _: np.random.Generator) -> Wins:
    """The mean of B is ahead by more than 2 %."""
    wins: Wins = arms.per_prompt.mean(axis=1) > log_gain(THRESHOLD_PCT)
    return wins


def bootstrap(arms: Arms, rng: np.random.Generator) -> Wins:
    """The 95 % percentile interval of the mean difference, prompts resampled, lies above 0."""
    found = stats.bootstrap(
        (arms.per_prompt,), np.mean, axis=1, n_resamples=NUM_RESAMPLES, method="percentile", batch=BATCH, rng=rng
    )
    wins: Wins = found.confidence_interval.low > 0
    return wins


def wilcoxon(arms: Arms, _: np.random.Generator) -> Wins:
    """Signed ranks of the prompts' differences."""
    wins: Wins = (stats.wilcoxon(arms.per_prompt, axis=1).pvalue < ALPHA) & (np.median(arms.per_prompt, axis=1) > 0)
    return wins


def mann_whitney(arms: Arms, _: np.random.Generator) -> Wins:
    """Ranks of all requests, which prompt they answer forgotten."""
    a, b = (arm.reshape(len(arm), -1) for arm in (arms.a, arms.b))
    found = stats.mannwhitneyu(a, b, axis=1, method="asymptotic")
    wins: Wins = (found.pvalue < ALPHA) & (np.median(a, axis=1) > np.median(b, axis=1))
    return wins


Rule = Callable[[Arms, np.random.Generator], Wins]
RULES: Sequence[tuple[str, Rule, Sequence[int]]] = (
    ("best of N runs, ship if faster", best_run, (1, 3)),
    ("mean of the runs, ship if > 2 % faster", over_threshold, (1, 3)),
    ("bootstrap of the mean difference, requests paired by prompt, p < 0.05", bootstrap, (1, 3)),
    ("Wilcoxon on requests paired by prompt, p < 0.05", wilcoxon, (1, 3)),
    ("Mann-Whitney on requests, p < 0.05", mann_whitney, (1, 3)),
)
"""Name, rule, and the sessions of each arm it is given: one run as commonly done, and about as many as ours takes."""


def win_share(rule: Rule, sigma: float, effect_pct: float, *, num: int, num_each: int, seed: int) -> float:
    """Share of `num` rounds in which the rule ships B."""
    rng = np.random.default_rng([seed, *f"{rule.__name__} {sigma} {effect_pct} {num_each}".encode()])
    wins = rule(draw_arms(rng, sigma, effect_pct, num, num_each), rng)
    return float(wins.mean())
