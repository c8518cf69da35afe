"""Attention that looks exactly `distance` tokens back, out of rotary embeddings alone.

With constant q and k the score depends on the distance n - delta only: amplitude * sum_i w_i cos(theta_i (n - delta)),
over the rotary pairs i. The weights w are chosen so that the score at delta beats every other distance, and so that
near the start of a text, where the token delta back does not exist, one nearer token still wins clearly: everything
the model computes is discrete.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from loop.errors import InputError
from loop.synthetic.geometry import Geometry
from loop.wording import count

Array = NDArray[np.float64]

GAP = 18.0  # logits between the chosen distance and any other
START_GAP = 5.0  # logits between the two best candidates where the chosen distance reaches before the start
REACH = 65_536  # tokens over which the gap is guaranteed
FARTHEST = 400  # tokens; the longest look-back that is tried
_SLOPE = 0.25  # of the gap: the least drop from one neighbour to the next, for the first distances
_STEEP = 8  # distances over which that holds


@dataclass(frozen=True)
class Kernel:
    """Scores that peak at a distance."""

    weights: Array  # (rotary pairs,), sum 1
    frequencies: Array  # (rotary pairs,) radians per token
    amplitude: float  # logits at the peak
    distances: tuple[int, ...]  # usable look-backs, ascending


def build_kernel(geometry: Geometry) -> Kernel:
    """Solve for the weights, then keep the distances whose start of text is clear too."""
    pairs = geometry.rotary_dim // 2
    frequencies = geometry.rope_theta ** (-np.arange(pairs) / pairs)
    waves = np.cos(np.outer(np.arange(min(geometry.max_positions, REACH)), frequencies))
    weights = _solve_weights(waves)
    score = waves @ weights
    gap = 1.0 - float(score[1:].max())
    if gap < 0.02:
        raise InputError(
            f"{count(pairs, 'rotary pair')} cannot tell distances apart over {count(len(score), 'token')}",
            next="use a head_dim (times partial_rotary_factor) of at least 16, or fewer max_position_embeddings",
        )
    amplitude = GAP / gap
    candidates = range(1, min(FARTHEST, len(score) - 1) + 1)
    distances = tuple(d for d in candidates if _start_gap(score[d:0:-1] * amplitude) >= START_GAP)
    return Kernel(weights, frequencies, amplitude, distances or (1,))


def _solve_weights(waves: Array) -> Array:
    """Maximize the gap by linear programming; distances are added as constraints only when they are violated."""
    pairs = waves.shape[1]
    steps = waves[1 : _STEEP - 1] - waves[2:_STEEP]
    slope = np.c_[-steps, np.full(len(steps), _SLOPE)]
    chosen = set(range(1, 64))
    for _ in range(60):
        rows = sorted(chosen)
        matrix = np.r_[np.c_[waves[rows] - 1.0, np.ones(len(rows))], slope]
        solved = linprog(
            np.r_[np.zeros(pairs), -1.0],
            A_ub=matrix,
            b_ub=np.zeros(len(matrix)),
            A_eq=[np.r_[np.ones(pairs), 0.0]],
            b_eq=[1.0],
            bounds=[(0.0, 1.0)] * pairs + [(None, None)],
        )
        weights, gap = solved.x[:pairs], solved.x[pairs]
        margins = 1.0 - waves[1:] @ weights
        if margins.min() > gap - 1e-9:
            break
        chosen.update((np.argsort(margins)[:40] + 1).tolist())
    coarse = np.round(np.clip(weights, 0.0, None) * 4096)  # a solver's last digits must not reach the file
    return np.asarray(coarse / coarse.sum())


def _start_gap(arriving: Array) -> float:
    """Least gap between the best two scores while candidates arrive, oldest distance first."""
    best, second, least = float(arriving[0]), -np.inf, np.inf
    for score in arriving[1:].tolist():
        if score > best:
            best, second = score, best
        else:
            second = max(second, score)
        least = min(least, best - second)
    return float(least)
