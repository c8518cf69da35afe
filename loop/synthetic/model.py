"""All tensors of a checkpoint, in file order, under the names transformers and SGLang load."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from loop.synthetic.attention import build_attention
from loop.synthetic.bf16 import Bits, Filler, round_to_bf16
from loop.synthetic.codebook import CLOSED, CONST, FLAG, PLACES, Codebook, build_codebook
from loop.synthetic.delta import build_delta
from loop.synthetic.geometry import Geometry
from loop.synthetic.kernel import Kernel, build_kernel
from loop.synthetic.mlp import build_mlp
from loop.synthetic.plan import LayerPlan, plan_draft, plan_layers
from loop.synthetic.shards import Tensor
from loop.synthetic.stream import Norm, draw_norm, state_gain, vector

MARGIN = 8.0  # logits between the best word and one that differs in one digit
_CHUNK = 8192  # embedding rows at a time


def build_model(geometry: Geometry, words: Sequence[int], seed: int) -> Iterator[Tensor]:
    """Everything but the files around it. `words`: ids that may be generated."""
    rng = np.random.default_rng([seed, 0x5EED])
    book = build_codebook(geometry, words, rng)
    filler = Filler(seed)
    kernel = build_kernel(geometry) if "full_attention" in geometry.layer_kinds or geometry.mtp else None
    plans = plan_layers(geometry, book.base, kernel, rng)
    # A tied head reads states with the embeddings themselves, so nothing may be undone there: the last norm is uniform.
    gain = state_gain(geometry.hidden, CLOSED)
    final = draw_norm(geometry.hidden, gain, rng, uniform=MARGIN / gain if geometry.tied else None)

    yield _rows("model.embed_tokens.weight", geometry, book.embed)
    for index, (kind, plan) in enumerate(zip(geometry.layer_kinds, plans, strict=True)):
        yield from _build_layer(f"model.layers.{index}", kind, geometry, book, kernel, plan, filler, rng)
    yield _norm("model.norm.weight", geometry, final)
    if not geometry.tied:
        scale = np.asarray(MARGIN / (final.weight * final.gain), dtype=np.float32)
        yield _rows("lm_head.weight", geometry, lambda start, stop: book.embed(start, stop) * scale)
    if geometry.mtp:
        yield from _build_draft(geometry, book, kernel, plan_draft(plans, book.base), final, filler, rng)


def _build_layer(
    prefix: str,
    kind: str,
    geometry: Geometry,
    book: Codebook,
    kernel: Kernel | None,
    plan: LayerPlan,
    filler: Filler,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    before = draw_norm(geometry.hidden, state_gain(geometry.hidden), rng)
    after = draw_norm(geometry.hidden, state_gain(geometry.hidden, bits=PLACES), rng)
    yield _norm(f"{prefix}.input_layernorm.weight", geometry, before)
    if kind == "linear_attention":
        yield from build_delta(prefix, geometry, book, plan, before, filler, rng)
    else:
        assert kernel is not None
        yield from build_attention(prefix, geometry, book, kernel, plan, before, filler, rng)
    yield _norm(f"{prefix}.post_attention_layernorm.weight", geometry, after)
    yield from build_mlp(prefix, geometry, book, plan, after, filler, rng)


def _build_draft(
    geometry: Geometry,
    book: Codebook,
    kernel: Kernel | None,
    plan: LayerPlan,
    final: Norm,
    filler: Filler,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    """One MTP layer.

    fc reads [normed embedding of the last token, normed hidden state]; under greedy decoding the second says no more
    than the first, so only the first is used.
    """
    entry = draw_norm(geometry.hidden, state_gain(geometry.hidden), rng)
    used = [CONST, FLAG, *range(2, book.scratch(0))]
    basis = book.basis[:, used]

    def mix() -> Iterator[Bits]:
        bits = filler.fill("mtp.fc.weight", (geometry.hidden, 2 * geometry.hidden), 0.004 * geometry.hidden**-0.5)
        bits[:, : geometry.hidden] = round_to_bf16(basis @ basis.T / (entry.weight * entry.gain))
        yield bits

    yield Tensor("mtp.fc.weight", (geometry.hidden, 2 * geometry.hidden), mix)
    yield _norm("mtp.pre_fc_norm_embedding.weight", geometry, entry)
    yield _norm("mtp.pre_fc_norm_hidden.weight", geometry, draw_norm(geometry.hidden, 1.0, rng))
    yield from _build_layer("mtp.layers.0", "full_attention", geometry, book, kernel, plan, filler, rng)
    yield _norm("mtp.norm.weight", geometry, final)


def _norm(name: str, geometry: Geometry, norm: Norm) -> Tensor:
    return vector(name, norm.weight - (1.0 if geometry.is_zero_centered else 0.0))


def _rows(name: str, geometry: Geometry, make: Callable[[int, int], NDArray[np.float32]]) -> Tensor:
    """A (vocab, hidden) matrix made some rows at a time."""

    def chunks() -> Iterator[Bits]:
        for start in range(0, geometry.vocab, _CHUNK):
            yield round_to_bf16(make(start, min(start + _CHUNK, geometry.vocab)))

    return Tensor(name, (geometry.vocab, geometry.hidden), chunks)
