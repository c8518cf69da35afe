"""What every layer computes, drawn from the seed before any weight is made.

Layer l replaces digit j of the state by `plus[j]` or `minus[j]` of it, two permutations, according to one bit fetched from the
context: the class of another digit in the state of an earlier token. So the output is a composition of table lookups that
context chooses, and a fault in any layer's attention, cache or MLP picks another table.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loop.synthetic.codebook import DIGITS
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
    plus: tuple[Index, ...]  # per digit: permutation of its values
    minus: tuple[Index, ...]
    bits: tuple[Bit, ...]  # per digit


def plan_layers(geometry: Geometry, base: int, kernel: Kernel | None, rng: np.random.Generator) -> list[LayerPlan]:
    """One plan per layer.

    A model with a draft layer (MTP) gets rare bits: the draft knows only the `plus` lookups, and a draft that is never accepted
    could not measure speculative decoding. Every other model gets balanced bits, so that a fault shows at the first token.
    """
    plans = [_plan_layer(index, base, kernel, geometry.mtp, rng) for index in range(len(geometry.layer_kinds))]
    if geometry.mtp:
        plans[-1] = _lengthen_cycles(plans, base, rng)
    return plans


def plan_draft(plans: list[LayerPlan], base: int) -> LayerPlan:
    """The MTP layer: all `plus` lookups of the model at once, whatever the context."""
    composed = []
    for position in range(DIGITS):
        total = np.arange(base)
        for plan in plans:
            total = plan.plus[position][total]
        composed.append(total)
    bits = tuple(Bit(source=p, negatives=np.array([], dtype=np.int64), distance=1, key=p, lag=1) for p in range(DIGITS))
    return LayerPlan(plus=tuple(composed), minus=tuple(composed), bits=bits)


def _plan_layer(layer: int, base: int, kernel: Kernel | None, rare: bool, rng: np.random.Generator) -> LayerPlan:
    plus, minus, bits = [], [], []
    for position in range(DIGITS):
        active = not rare or position == layer % DIGITS
        size = (1 if rare else base // 2) if active else 0
        plus.append(_derange(np.arange(base), rng))
        minus.append(_swap_half(plus[-1], rng) if rare else _derange(plus[-1], rng))
        bits.append(
            Bit(
                source=(position + 1 + layer) % DIGITS,
                negatives=np.sort(rng.permutation(base)[:size]),
                distance=_draw_distance(kernel, layer + position, rng),
                key=(position + layer) % DIGITS,
                lag=1 + (position + layer) % 3,
            )
        )
    return LayerPlan(tuple(plus), tuple(minus), tuple(bits))


def _lengthen_cycles(plans: list[LayerPlan], base: int, rng: np.random.Generator) -> LayerPlan:
    """The last layer's plan, its tables such that `plus` lookups alone repeat after base * (base - 1) * (base - 3) words or so.

    Per digit, all `plus` tables together become one long cycle and one short one of 0, 1 or 3 values.
    """
    before = plan_draft(plans[:-1], base)
    plus = []
    for position, rest in enumerate((0, 1, 3)[:DIGITS]):
        values = rng.permutation(base)
        total = np.arange(base)
        for cycle in (values[rest:], values[:rest]):
            total[cycle] = np.roll(cycle, -1)
        table = np.empty(base, dtype=np.int64)
        table[before.plus[position]] = total
        plus.append(table)
    last = plans[-1]
    return LayerPlan(tuple(plus), tuple(_swap_half(table, rng) for table in plus), last.bits)


def _draw_distance(kernel: Kernel | None, turn: int, rng: np.random.Generator) -> int:
    """Near, middle and far distances by turns."""
    if kernel is None:
        return 1
    thirds = [d for d in np.array_split(np.array(kernel.distances), 3) if len(d)]
    return int(rng.choice(thirds[turn % len(thirds)]))


def _derange(values: Index, rng: np.random.Generator) -> Index:
    """A permutation of `values` that moves every one of them: none of its lookups is the identity or that of `values`."""
    while True:
        shuffled = rng.permutation(values)
        if not (shuffled == values).any() and not (shuffled == np.arange(len(values))).any():
            return np.asarray(shuffled)


def _swap_half(values: Index, rng: np.random.Generator) -> Index:
    """`values` with half of its entries exchanged pairwise."""
    swapped = values.copy()
    places = rng.permutation(len(values))[: len(values) // 2 // 2 * 2]
    swapped[places] = values[np.roll(places.reshape(-1, 2), 1, axis=1).reshape(-1)]
    return swapped
