"""Gated delta net as an exact associative memory: read the bit that was stored under the same key, however long ago.

Per head: at token t the key is a digit of token t - lag (one-hot, shifted by a convolution tap), the value a bit of
token t, and the query the same digit of token t. With orthogonal keys, beta = 1 and no decay, the delta rule replaces
exactly one slot. A rare pair of digits closes the decay gate and wipes the memory. Until a slot has been written, a
faint echo of the slot written just now decides, because the output norm would otherwise blow up rounding noise.
Reference: transformers 5.19 modeling_qwen3_5.py, Qwen3_5GatedDeltaNet (in_proj_qkv = [q heads, k heads, v heads]).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from loop.synthetic.bf16 import Bits, Filler, round_to_bf16
from loop.synthetic.codebook import BIT, CONST, PLACES, Codebook
from loop.synthetic.geometry import Geometry
from loop.synthetic.plan import LayerPlan
from loop.synthetic.shards import Tensor
from loop.synthetic.stream import Array, Columns, Index, Matrix, Norm, Rows, vector

_ON = 20.0  # input of the silu behind the convolution, for a digit that is there
_OFF = 0.3  # of it is taken off in keys and values, so that silu drops what is not there
_ECHO = 0.1  # convolution tap with which the query also sees the key written just now
_OPEN = 12.0  # beta = sigmoid(12)
_WIPE = 30.0  # decay input when both digits of the trigger are there: +15, else -15 or less
_GATE = 2.0  # input of the output gate's silu
_READ_STD, _WRITE_STD = 0.2, 0.004  # as in attention.py


def build_delta(
    prefix: str,
    geometry: Geometry,
    book: Codebook,
    plan: LayerPlan,
    norm: Norm,
    filler: Filler,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    """Tensors of `{prefix}.linear_attn`.

    Value head h serves digit h (modulo the heads); a key head takes the key of the first digit it serves.
    """
    key_size, value_size = geometry.key_dim, geometry.value_dim
    keys, values = geometry.key_heads * key_size, geometry.value_heads * value_size
    ratio = geometry.value_heads // geometry.key_heads
    gain = np.round(rng.uniform(0.7, 1.4, value_size) * 128) / 128
    trigger = [book.digit(position, int(rng.integers(book.base))) for position in (0, 1)]

    qkv: list[tuple[Index, Rows]] = []
    taps: dict[int, Array] = {}  # first channel of a head -> (width, taps)
    for group in range(-(-min(PLACES, geometry.value_heads) // ratio)):
        bit = plan.bits[group * ratio]
        lag = min(bit.lag, geometry.conv - 1)
        q, k = Rows(book, norm, key_size), Rows(book, norm, key_size)
        digit = slice(book.digit(bit.key), book.digit(bit.key) + book.base)
        q.function[: book.base, digit] = k.function[: book.base, digit] = _ON * np.eye(book.base)
        k.function[: book.base, CONST] = -_ON * _OFF
        for rows, start, lags in ((q, 0, {0: 1.0, lag: _ECHO}), (k, keys, {lag: 1.0})):
            first = start + group * key_size
            qkv.append((first + np.arange(key_size), rows))
            taps[first] = _tap(geometry.conv, key_size, book.base, lags)

    control = Rows(book, norm, 2)  # beta and decay inputs
    control.function[0, CONST] = _OPEN
    control.function[1, trigger] = _WIPE
    control.function[1, CONST] = -1.5 * _WIPE
    z = Rows(book, norm, value_size)
    z.function[:, CONST] = _GATE
    used = range(min(PLACES, geometry.value_heads))
    columns: list[tuple[Index, Columns]] = []
    for head in used:
        positions = range(head, PLACES, geometry.value_heads)
        v, out = _store_bits(geometry, book, plan, norm, positions, gain)
        first = 2 * keys + head * value_size
        qkv.append((first + np.arange(value_size), v))
        taps[first] = _tap(geometry.conv, value_size, 2 * len(positions), {0: 1.0})
        columns.append((head * value_size + np.arange(2 * len(positions)), out))

    hidden, heads, read, name = (
        geometry.hidden,
        geometry.value_heads,
        _READ_STD * geometry.hidden**-0.5,
        f"{prefix}.linear_attn",
    )
    gates = [(head * value_size + np.arange(value_size), z) for head in used]
    yield Matrix(f"{name}.in_proj_qkv.weight", (2 * keys + values, hidden), read, qkv).tensor(filler)
    yield Matrix(f"{name}.in_proj_z.weight", (values, hidden), read, gates).tensor(filler)
    yield Matrix(f"{name}.in_proj_b.weight", (heads, hidden), read, [_pick(control, 0, used)]).tensor(filler)
    yield Matrix(f"{name}.in_proj_a.weight", (heads, hidden), read, [_pick(control, 1, used)]).tensor(filler)
    yield _convolution(f"{name}.conv1d.weight", (2 * keys + values, 1, geometry.conv), taps, filler)
    yield vector(f"{name}.A_log", np.zeros(heads))
    yield vector(f"{name}.dt_bias", np.zeros(heads))
    yield vector(f"{name}.norm.weight", gain)
    yield Matrix(f"{name}.out_proj.weight", (hidden, values), _WRITE_STD * values**-0.5, columns=columns).tensor(filler)


def _store_bits(
    geometry: Geometry, book: Codebook, plan: LayerPlan, norm: Norm, positions: Sequence[int], gain: Array
) -> tuple[Rows, Columns]:
    """What one head stores and gives back: per bit a channel that is on for +1 and one that is on for -1."""
    v, out = Rows(book, norm, geometry.value_dim), Columns(book, 2 * len(positions))
    gate = _GATE / (1.0 + np.exp(-_GATE))
    level = np.sqrt(geometry.value_dim / len(positions)) * gate  # of a channel that is on, normed and gated
    for order, position in enumerate(positions):
        source, negatives = book.digit(plan.bits[position].source), plan.bits[position].negatives
        plus, minus = 2 * order, 2 * order + 1
        v.function[plus, source : source + book.base] = _ON
        v.function[plus, source + negatives] = 0.0
        v.function[minus, source + negatives] = _ON
        v.function[[plus, minus], CONST] = -_ON * _OFF
        out.vectors[plus, book.scratch(position)] = BIT / (level * gain[plus])
        out.vectors[minus, book.scratch(position)] = -BIT / (level * gain[minus])
    return v, out


def _pick(rows: Rows, row: int, heads: Sequence[int]) -> tuple[Index, Rows]:
    """The same row for every one of `heads`."""
    return np.array(heads), rows.select([row] * len(heads))


def _tap(size: int, width: int, used: int, lags: dict[int, float]) -> Array:
    """(width, 1, size) convolution kernels; the last tap is the current token.

    Channels behind the `used` ones are shut, or the sum of many small keys would drown the echo.
    """
    kernel = np.zeros((width, 1, size))
    for lag, weight in lags.items():
        kernel[:used, 0, size - 1 - lag] = weight
    return kernel


def _convolution(name: str, shape: tuple[int, int, int], taps: dict[int, Array], filler: Filler) -> Tensor:
    """Depthwise kernels: those in `taps`, the rest random."""

    def chunks() -> Iterator[Bits]:
        bits = filler.fill(name, shape, 0.3)
        for first, kernel in taps.items():
            bits[first : first + len(kernel)] = round_to_bf16(kernel)
        yield bits

    return Tensor(name, shape, chunks)
