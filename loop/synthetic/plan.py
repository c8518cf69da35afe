"""What every layer computes, drawn from the seed before any weight is made.

Layer l replaces digit j of the state by `plus[j]` or `minus[j]` of it, two permutations, according to one bit fetched
from the context: the class of another digit in the state of an earlier token. So the output is a composition of table
lookups that context chooses, and a fault in any layer's attention, cache or MLP picks another table.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loop.synthetic.codebook import DIGITS, MEMORY, PLACES
from loop.synthetic.geometry import Geometry
from loop.synthetic.kernel import Kernel

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Bit:
    """The bit that decides one digit's lookup."""

    source: int  # digit whose class is read, in the state of the token attended to
    negatives: Index  # values of that digit that give -1; every other gives +1
    distance: int  # tokens back (full attention)
    key: int  # digit that addresses the memory (gated delta net)
    lag: int  # tokens between a key and the value stored under it (gated delta net)


@dataclass(frozen=True)
class LayerPlan:
    """The lookups of one layer and what chooses among them."""

    plus: tuple[Index, ...]  # per digit: permutation of its values
    minus: tuple[Index, ...]
    bits: tuple[Bit, ...]  # per digit
    closes: bool  # it is the last before the final norm (codebook.CLOSED)


def plan_layers(geometry: Geometry, base: int, kernel: Kernel | None, rng: np.random.Generator) -> list[LayerPlan]:
    """One plan per layer.

    Bits are balanced, so that a fault shows within a few tokens. A model with a draft layer (MTP) is different: the
    draft knows only the `plus` lookups, and a draft that is never accepted could not measure speculative decoding.
    There the bits work on the memory digit alone, and only the last layer lets memory choose the `minus` lookup of a
    token's digit, one time in eight.
    """
    count = len(geometry.layer_kinds)
    plans = [_plan_layer(index, geometry, base, kernel, rng) for index in range(count)]
    if geometry.mtp:
        plans[-1] = _lengthen_cycles(plans, base, rng)
    return plans


def plan_draft(plans: list[LayerPlan], base: int) -> LayerPlan:
    """The MTP layer: all `plus` lookups of the model at once, whatever the context."""
    composed = []
    for place in range(PLACES):
        total = np.arange(base)
        for plan in plans:
            total = plan.plus[place][total]
        composed.append(total)
    bits = tuple(Bit(source=p, negatives=np.array([], dtype=np.int64), distance=1, key=p, lag=1) for p in range(PLACES))
    return LayerPlan(plus=tuple(composed), minus=tuple(composed), bits=bits, closes=True)


def _plan_layer(
    layer: int, geometry: Geometry, base: int, kernel: Kernel | None, rng: np.random.Generator
) -> LayerPlan:
    last = layer == len(geometry.layer_kinds) - 1
    plus, minus, bits = [], [], []
    for place in range(PLACES):
        size, source = base // 2, (place + 1 + layer) % PLACES
        if geometry.mtp and place == MEMORY:
            source = MEMORY if layer % 2 else layer // 2 % DIGITS
        elif geometry.mtp:
            size, source = (max(base // 8, 1) if last else 0), MEMORY
        plus.append(_derange(np.arange(base), rng))
        minus.append(_derange(plus[-1], rng))
        bits.append(
            Bit(
                source=source,
                negatives=np.sort(rng.permutation(base)[:size]),
                distance=_draw_distance(kernel, layer + place, rng),
                key=(place + layer) % DIGITS,
                lag=1 + (place + layer) % 3,
            )
        )
    return LayerPlan(tuple(plus), tuple(minus), tuple(bits), closes=last)


def _draw_distance(kernel: Kernel | None, turn: int, rng: np.random.Generator) -> int:
    """Near, middle and far distances by turns."""
    if kernel is None:
        return 1
    thirds = [d for d in np.array_split(np.array(kernel.distances), 3) if len(d)]
    return int(rng.choice(thirds[turn % len(thirds)]))


def _derange(values: Index, rng: np.random.Generator) -> Index:
    """A permutation that nowhere agrees with `values` nor with the identity."""
    while True:
        shuffled = rng.permutation(values)
        if not (shuffled == values).any() and not (shuffled == np.arange(len(values))).any():
            return np.asarray(shuffled)


def _lengthen_cycles(plans: list[LayerPlan], base: int, rng: np.random.Generator) -> LayerPlan:
    """The last layer's plan, its tables such that `plus` lookups alone repeat only after thousands of words.

    Per digit of a token, all `plus` tables together become one long cycle and one short one of 0, 1 or 3 values.
    """
    before, last = plan_draft(plans[:-1], base), plans[-1]
    plus, minus = list(last.plus), list(last.minus)
    for place, rest in zip(range(DIGITS), (0, 1, 3), strict=True):
        values = rng.permutation(base)
        total = np.arange(base)
        for cycle in (values[rest:], values[:rest]):
            total[cycle] = np.roll(cycle, -1)
        plus[place] = np.empty(base, dtype=np.int64)
        plus[place][before.plus[place]] = total
        minus[place] = rng.permutation(base)
        while (minus[place] == plus[place]).any():
            minus[place] = rng.permutation(base)
    return replace(last, plus=tuple(plus), minus=tuple(minus))
