"""Simulated rounds: session values whose truth is known, judged by the product's own `loop.stats.estimate`.

Values are natural logarithms of costs (lower is better), as the product judges them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from loop.schedule import ORDERS
from loop.stats import estimate
from loop.workspace import DeviceSettings

Groups = list[tuple[float, ...]]
"""Earlier sessions that served the same thing; what differs inside a group is noise."""
Floats = NDArray[np.float64]

PRIOR_SIGMA = DeviceSettings().sigma_prior_pct / 100
ORDER = ORDERS["ababa"]
SHORT = len(ORDERS["aba"])
"""Sessions before an undecided round takes two more."""
NUM_SESSIONS = len(ORDER)
CALIBRATION = (3, 3)
"""`loop calibrate`: rounds of A against A, and the sessions of each."""
STAY = 0.9
"""How much of a wandering machine's offset is left one session later."""
HISTORIES = {"none": (0, 0), "calibrated": (CALIBRATION[0], 0), "10 rounds": (CALIBRATION[0], 10)}
"""What is in the ledger before the candidate: calibration rounds, and rounds of candidates that change nothing."""


@dataclass(frozen=True)
class Noise:
    """What moves a session's value beside the truth, as log ratios; 0.01 is 1 %."""

    sigma: float
    """Standard deviation between sessions, normal and independent."""
    outlier_share: float = 0.0
    outlier_shift: float = 0.0
    """An outlier is moved up or down by this much."""
    drift: float = 0.0
    """Added with every session of a round."""
    wander: float = 0.0
    """Standard deviation of a slow AR(1) walk of the machine, `STAY` from session to session."""

    def draw(self, rng: np.random.Generator, num_rounds: int, num_sessions: int = NUM_SESSIONS) -> list[list[float]]:
        """The noise of every session of `num_rounds` rounds."""
        shape = (num_rounds, num_sessions)
        values: Floats = rng.normal(0.0, self.sigma, shape) + self.drift * np.arange(num_sessions)
        if self.outlier_share:
            values += self.outlier_shift * rng.choice((-1, 1), shape) * (rng.random(shape) < self.outlier_share)
        if self.wander:
            walk = rng.normal(0.0, self.wander, shape)
            for index in range(1, num_sessions):
                walk[:, index] = STAY * walk[:, index - 1] + math.sqrt(1 - STAY**2) * walk[:, index]
            values += walk
        drawn: list[list[float]] = values.tolist()
        return drawn


@dataclass(frozen=True, slots=True)
class SimulatedRound:
    """What a round found."""

    outcome: str
    """The product's outcome, or `invalid` after drift, or `futile` where B ended the round."""
    effect: float
    values: tuple[float, ...]
    """Of its sessions in order: A, B, A, ..."""

    @property
    def groups(self) -> Groups:
        """What it adds to the history: its As and its Bs; nothing if it is invalid (`loop/history.py`)."""
        if self.outcome == "invalid":
            return []
        return [group for group in (self.values[0::2], self.values[1::2]) if len(group) > 1]


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one candidate."""

    screening: SimulatedRound
    confirmation: SimulatedRound | None
    """A fresh round, if the screening was `improved`."""

    @property
    def promoted(self) -> bool:
        """Both rounds found an improvement."""
        return self.confirmation is not None and self.confirmation.outcome == "improved"

    @property
    def num_sessions(self) -> int:
        """Server lifetimes spent on the candidate."""
        return len(self.screening.values) + (len(self.confirmation.values) if self.confirmation else 0)

    @property
    def groups(self) -> Groups:
        """What both rounds add to the history."""
        return self.screening.groups + (self.confirmation.groups if self.confirmation else [])


def log_gain(effect_pct: float) -> float:
    """By how much B's log cost is below A's when B is `effect_pct` faster."""
    return math.log1p(effect_pct / 100)


def run_round(noise: Sequence[float], gain: float, groups: Groups) -> SimulatedRound:
    """One round as `loop run` makes it: A, B, A; no second A after a hopeless B; two more sessions if undecided."""
    values = tuple(value - gain if arm == "B" else value for arm, value in zip(ORDER, noise, strict=True))
    first = estimate(values[:1], values[1:2], groups, PRIOR_SIGMA)
    if first.futile:
        return SimulatedRound("futile", first.effect, values[:2])
    for num_sessions in (SHORT, NUM_SESSIONS):
        seen = values[:num_sessions]
        found = estimate(seen[0::2], seen[1::2], groups, PRIOR_SIGMA)
        outcome = "invalid" if found.drifted else found.outcome
        if outcome != "inconclusive":
            break
    return SimulatedRound(outcome, found.effect, seen)


def try_candidate(screening: Sequence[float], confirming: Sequence[float], gain: float, groups: Groups) -> Trial:
    """A screening round and, if it improved, a fresh round that knows the noise of the first."""
    first = run_round(screening, gain, groups)
    if first.outcome != "improved":
        return Trial(first, None)
    return Trial(first, run_round(confirming, gain, groups + first.groups))


def draw_histories(noise: Noise, history: str, rng: np.random.Generator, num: int) -> Iterator[Groups]:
    """`num` independent ledgers, as groups of equal sessions."""
    num_calibrations, num_earlier = HISTORIES[history]
    calibrations = noise.draw(rng, num * num_calibrations, CALIBRATION[1])
    earlier = noise.draw(rng, num * num_earlier)
    for index in range(num):
        groups = [tuple(g) for g in calibrations[index * num_calibrations : (index + 1) * num_calibrations]]
        for drawn in earlier[index * num_earlier : (index + 1) * num_earlier]:
            groups += run_round(drawn, 0.0, groups).groups
        yield groups


def simulate(
    noise: Noise, history: str, effects_pct: Sequence[float], *, num: int, seed: int
) -> dict[float, list[Trial]]:
    """Effect → `num` candidates, each with a ledger of its own; every effect meets the same noise and ledgers.

    The random numbers depend on the seed, the noise and the history only: a cell can be made anew on its own.
    """
    rng = np.random.default_rng([seed, *f"{noise} {history}".encode()])
    drawn = zip(noise.draw(rng, num), noise.draw(rng, num), draw_histories(noise, history, rng, num), strict=True)
    trials: dict[float, list[Trial]] = {effect_pct: [] for effect_pct in effects_pct}
    for screening, confirming, groups in drawn:
        for effect_pct, found in trials.items():
            found.append(try_candidate(screening, confirming, log_gain(effect_pct), groups))
    return trials


@dataclass(frozen=True)
class Campaign:
    """Candidates tried one after the other on one ledger."""

    trials: list[Trial]
    again: SimulatedRound
    """A fresh round of the candidate that looked best, whatever the verdicts were."""

    @property
    def best(self) -> SimulatedRound:
        """The valid screening with the largest estimate."""
        return max(valid_screenings(self.trials), key=lambda found: found.effect)


def valid_screenings(trials: Iterable[Trial]) -> list[SimulatedRound]:
    """Those whose baseline stood still."""
    return [trial.screening for trial in trials if trial.screening.outcome != "invalid"]


def run_campaigns(noise: Noise, effect_pct: float, *, num: int, num_candidates: int, seed: int) -> list[Campaign]:
    """`num` campaigns after `loop calibrate`, every candidate with the same true effect; the ledger grows."""
    rng = np.random.default_rng([seed, *f"campaign {noise} {effect_pct}".encode()])
    gain = log_gain(effect_pct)
    campaigns = []
    for groups in draw_histories(noise, "calibrated", rng, num):
        trials = []
        for screening, confirming in zip(noise.draw(rng, num_candidates), noise.draw(rng, num_candidates), strict=True):
            trials.append(try_candidate(screening, confirming, gain, groups))
            groups.extend(trials[-1].groups)
        fresh = fresh_round(noise, rng, gain, groups)
        campaigns.append(Campaign(trials, fresh))
    return campaigns


def fresh_round(noise: Noise, rng: np.random.Generator, gain: float, groups: Groups) -> SimulatedRound:
    """The next round on a machine that does not drift too much: an invalid one is run again."""
    while True:
        found = run_round(noise.draw(rng, 1)[0], gain, groups)
        if found.outcome != "invalid":
            return found


def share(trials: Sequence[Trial], outcome: str) -> float:
    """Share of the screenings that ended so."""
    return fmean(trial.screening.outcome == outcome for trial in trials)


def promoted_share(trials: Sequence[Trial]) -> float:
    """Share of the candidates that may ship."""
    return fmean(trial.promoted for trial in trials)


def mean_sessions(trials: Sequence[Trial]) -> float:
    """Server lifetimes per candidate."""
    return fmean(trial.num_sessions for trial in trials)
