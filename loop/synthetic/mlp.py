"""The SwiGLU MLP as a table: erase the digits, then write what the lookup of (digit, bit) says.

A neuron computes silu(gate) * up. An eraser has a large constant gate and `up` reads a coordinate, so it takes off
exactly what is there, noise included. A lookup is a pair of neurons whose gates differ by a constant: silu(z + a/2) -
silu(z - a/2) is a step from 0 to a, so what is written has the same size whatever the noise in what was read. Errors
never add up over layers.
"""

from collections.abc import Iterator

import numpy as np

from loop.synthetic.bf16 import Filler
from loop.synthetic.codebook import BIT, CLOSED, CONST, COPIES, FLAG, LEVEL, PLACES, Codebook
from loop.synthetic.geometry import Geometry
from loop.synthetic.plan import LayerPlan
from loop.synthetic.shards import Tensor
from loop.synthetic.stream import Columns, Matrix, Norm, Rows

_SLOPE = 46.0  # gate per unit of (digit + weight * bit)
_WEIGHT = 0.4  # of the bit beside the digit; below 0.5, or the lookups of absent digits leak
_EDGE = 1 / 2  # the bit is -1 or +1, or 0 where nothing could be fetched; the threshold lies at -1/2, so 0 counts as +1
_STEP = 8.0  # a
_OPEN = 8.0  # gate of the erasers
_READ_STD, _WRITE_STD = 0.2, 0.004  # as in attention.py


def build_mlp(
    prefix: str,
    geometry: Geometry,
    book: Codebook,
    plan: LayerPlan,
    norm: Norm,
    filler: Filler,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    """Tensors of `{prefix}.mlp`; the neurons in use are scattered over the layer."""
    lookups = [(p, value, sign) for p in range(PLACES) for value in range(book.base) for sign in (1.0, -1.0)]
    erased = [FLAG, *range(2, book.size)]
    count = len(erased) + 1 + 2 * COPIES * len(lookups)
    gate, up = Rows(book, norm, count), Rows(book, norm, count)
    down = Columns(book, count)
    opened = _OPEN / (1.0 + np.exp(-_OPEN))

    for neuron, coordinate in enumerate([*erased, CONST]):
        gate.function[neuron, CONST] = _OPEN
        up.function[neuron, coordinate] = 1.0
        down.vectors[neuron, coordinate] = -1.0 / opened
    writer = len(erased)  # reads the constant and sets the flag: the state is now of a word that can be generated
    down.vectors[writer, CONST] = (CLOSED - LEVEL) / opened if plan.closes else 0.0
    down.vectors[writer, FLAG] = 1.0 / opened

    neuron = writer + 1
    for position, value, sign in lookups:
        target = book.digit(position, int((plan.plus if sign > 0 else plan.minus)[position][value]))
        for copy in range(COPIES):
            nudge, size = copy / COPIES, 0.75 + copy / COPIES / 2  # so that bf16 rounds every copy differently
            for shift in (_STEP / 2, -_STEP / 2):
                gate.function[neuron, book.digit(position, value)] = _SLOPE
                gate.function[neuron, book.scratch(position)] = sign * _SLOPE * _WEIGHT / BIT
                gate.function[neuron, CONST] = _SLOPE * (sign * _WEIGHT * _EDGE - 1.0) + nudge + shift
                up.function[neuron, CONST] = size
                down.vectors[neuron, target] = np.sign(shift) / (_STEP * COPIES * size)
                neuron += 1

    places = rng.permutation(geometry.intermediate)[:count]
    hidden, inner, name = geometry.hidden, geometry.intermediate, f"{prefix}.mlp"
    read = _READ_STD * hidden**-0.5
    yield Matrix(f"{name}.gate_proj.weight", (inner, hidden), read, [(places, gate)]).tensor(filler)
    yield Matrix(f"{name}.up_proj.weight", (inner, hidden), read, [(places, up)]).tensor(filler)
    yield Matrix(
        f"{name}.down_proj.weight", (hidden, inner), _WRITE_STD * inner**-0.5, columns=[(places, down)]
    ).tensor(filler)
