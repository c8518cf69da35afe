"""Full attention, plain (Qwen3) or gated with partial rotary (Qwen3.5): fetch a bit from a fixed distance back."""

from collections.abc import Iterator

import numpy as np

from loop.synthetic.bf16 import Filler
from loop.synthetic.codebook import BIT, CONST, PLACES, Codebook
from loop.synthetic.geometry import Geometry
from loop.synthetic.kernel import Kernel
from loop.synthetic.plan import LayerPlan
from loop.synthetic.shards import Tensor
from loop.synthetic.stream import Array, Columns, Matrix, Norm, Rows, vector

_READ_STD = 0.2  # of filler rows, times hidden**-0.5: small beside the constants that make q and k
_WRITE_STD = 0.004  # of filler columns, times inputs**-0.5: they must not move the state
_LOUD = 100.0  # size of q and k before their norms, far above the filler of the other dimensions
_GATE = 2.0  # input of the output gate's sigmoid, for the channels in use


def build_attention(
    prefix: str,
    geometry: Geometry,
    book: Codebook,
    kernel: Kernel,
    plan: LayerPlan,
    norm: Norm,
    filler: Filler,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    """Tensors of `{prefix}.self_attn`.

    Layout: q_proj of Qwen3.5 holds, per head, head_dim rows of q, then as many of its gate.
    Head h serves digit h (modulo the heads); the others look elsewhere and write next to nothing.
    """
    size, heads = geometry.head_dim, geometry.heads
    gated = geometry.family == "qwen3_5"
    stride = size * (2 if gated else 1)
    channels = rng.permutation(size)[:PLACES]  # v channel of each digit's bit, the same in every kv head
    distances = [
        plan.bits[head].distance if head < PLACES else int(rng.choice(kernel.distances)) for head in range(heads)
    ]

    q, k = Rows(book, norm, heads * stride), Rows(book, norm, geometry.kv_heads * size)
    for head, distance in enumerate(distances):
        start = head * stride
        q.function[start : start + size, CONST] = _spread(kernel, size, geometry.rotary_dim, -distance)
        q.function[start + size : start + stride, CONST] = _GATE
    k.function[:, CONST] = np.tile(_spread(kernel, size, geometry.rotary_dim, 0), geometry.kv_heads)
    v = Rows(book, norm, PLACES)
    for position, bit in enumerate(plan.bits):
        source = book.digit(bit.source)
        v.function[position, source : source + book.base] = 1.0
        v.function[position, source + bit.negatives] = -1.0
    out = Columns(book, PLACES)
    opened = 1.0 / (1.0 + np.exp(-_GATE)) if gated else 1.0
    for position in range(PLACES):
        out.vectors[position, book.scratch(position)] = BIT / opened
    outputs = np.array([position % heads * size for position in range(PLACES)]) + channels

    hidden, read, name = geometry.hidden, _READ_STD * geometry.hidden**-0.5, f"{prefix}.self_attn"
    yield Matrix(f"{name}.q_proj.weight", (heads * stride, hidden), read, [(np.arange(heads * stride), q)]).tensor(
        filler
    )
    yield Matrix(
        f"{name}.k_proj.weight", (geometry.kv_heads * size, hidden), read, [(np.arange(geometry.kv_heads * size), k)]
    ).tensor(filler)
    yield Matrix(
        f"{name}.v_proj.weight",
        (geometry.kv_heads * size, hidden),
        read,
        [(head * size + channels, v) for head in range(geometry.kv_heads)],
    ).tensor(filler)
    write = _WRITE_STD * (heads * size) ** -0.5
    yield Matrix(f"{name}.o_proj.weight", (hidden, heads * size), write, columns=[(outputs, out)]).tensor(filler)
    # The norms make q and k as long as head_dim**0.5 * scale, and attention divides the score by head_dim**0.5.
    scale = np.full(size, np.sqrt(kernel.amplitude / np.sqrt(size)))
    for norm_name in ("q_norm", "k_norm"):
        yield vector(f"{name}.{norm_name}.weight", scale - (1.0 if geometry.is_zero_centered else 0.0))


def _spread(kernel: Kernel, size: int, rotary_dim: int, shift: int) -> Array:
    """(size,) constant vector over the rotary pairs (i, i + rotary_dim / 2), turned as if `shift` tokens later."""
    half = rotary_dim // 2
    values = np.zeros(size)
    strength = _LOUD * np.sqrt(kernel.weights)
    angle = kernel.frequencies * shift
    values[:half] = strength * np.cos(angle)
    values[half:rotary_dim] = strength * np.sin(angle)
    return values
