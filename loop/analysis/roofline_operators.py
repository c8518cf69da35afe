"""The operators of one forward pass, from the dimensions of a model: what each must compute and move at least.

A pass has B requests of q new tokens each (T = B·q), every one behind a context of k tokens that are there already.
Conventions: a multiply-add is two operations; every weight is read once; an activation is read and written once by each
operator, as kernels that are not fused do; what is gathered (embeddings) moves, and is not multiplied.

    linear        2·T·in·out operations        Kaplan et al. 2020, arXiv:2001.08361, table 1
    attention     4·heads·dim per token pair   the same; pairs = Σ over requests of q·k + q·(q+1)/2, causal
    delta rule    7·dk·dv per token and head   the recurrence of Yang et al. 2024, arXiv:2412.06464, eq. 10:
                  S ← αS (1), v' = S·k (2), S ← S + β(v − v')·kᵀ (2), o = S·q (2)
    experts       expected distinct experts = E·(1 − (1 − a/E)^T), each read once
"""

from collections.abc import Iterator

from loop.dimensions import Delta, Dimensions, Experts, Latent
from loop.record import Record


class Batch(Record):
    """One forward pass."""

    num_requests: int
    num_query_tokens: int = 1
    """New tokens of each request: 1 in decode, the draft and one more in verification, a chunk in prefill."""
    num_context_tokens: int = 0
    """Tokens of each request that are in the cache already."""
    samples_all: bool = False
    """Whether every new token is scored, as verification does; else the last of each request."""

    @property
    def num_tokens(self) -> int:
        """New tokens of all requests."""
        return self.num_requests * self.num_query_tokens

    @property
    def num_scored(self) -> int:
        """Tokens that the head is asked about."""
        return self.num_tokens if self.samples_all else self.num_requests

    def num_pairs(self, window: int | None = None) -> int:
        """(new token, token that it sees) over all requests; with a window it sees so many at most."""
        own, past = self.num_query_tokens, self.num_context_tokens
        if window is None or past + own <= window:
            return self.num_requests * (own * past + own * (own + 1) // 2)
        return self.num_requests * sum(min(window, past + i + 1) for i in range(own))


class Precision(Record):
    """Bytes of an element."""

    weight_bytes: float = 2.0
    head_bytes: float = 2.0
    """Of the table of the head, which is seldom quantized."""
    activation_bytes: float = 2.0
    cache_bytes: float = 2.0
    state_bytes: float = 4.0


class Operator(Record):
    """One kind of work, `count` times in a pass; operations and bytes of all of them together, of all GPUs."""

    name: str
    """As the traces call it: the projection, else the category."""
    layer_kind: str
    """`full_attention`, `linear_attention`, ...; `every` layer; `model`, once."""
    count: int
    flops: float
    num_bytes: float
    num_weights: int
    """Weights of all of them."""
    shape: str
    """Of one: what goes in → what comes out."""
    out_features: int | None = None
    """Of a linear layer: it tells two that the traces call alike."""


class Forward:
    """All operators of one pass. Methods yield those of one kind of layer, of which there are `count`."""

    def __init__(self, dimensions: Dimensions, batch: Batch, precision: Precision) -> None:
        self.dimensions = dimensions
        self.batch = batch
        self.precision = precision

    def operators(self) -> tuple[Operator, ...]:
        """In the order in which a pass comes to them."""
        own = self.dimensions
        kinds = [kind for kind in ("linear_attention", "sliding_attention", "full_attention") if kind in own.layers]
        mixers = [operator for kind in kinds for operator in self._mixer(kind, own.layers.count(kind))]
        experts = own.experts
        num_sparse = sum(experts.layers) if experts else 0
        num_dense = len(own.layers) - num_sparse
        feeds = [*(self._experts(experts, num_sparse) if experts and num_sparse else ())]
        feeds += [*(self._feed(num_dense, own.intermediate) if num_dense else ())]
        return (self._embedding(), *mixers, *feeds, self._norms(), *self._head())

    def draft(self) -> tuple[Operator, ...]:
        """One step of a multi-token-prediction layer: fuse hidden state and embedding, one layer, the head again."""
        own = self.dimensions
        fuse = self.linear("fc", "draft", 1, 2 * own.hidden, own.hidden)
        experts = own.experts
        feed = self._experts(experts, 1) if experts else self._feed(1, own.intermediate)
        return (fuse, *self._mixer("full_attention", 1), *feed, *self._head())

    def linear(self, name: str, kind: str, count: int, inputs: int, outputs: int, rows: int | None = None) -> Operator:
        """A linear layer over `rows` rows, all new tokens if not given."""
        rows = self.batch.num_tokens if rows is None else rows
        size = self.precision.head_bytes if name == "lm_head" else self.precision.weight_bytes
        moved = inputs * outputs * size + rows * (inputs + outputs) * self.precision.activation_bytes
        return Operator(
            name=name,
            layer_kind=kind,
            count=count,
            flops=2.0 * count * rows * inputs * outputs,
            num_bytes=count * moved,
            num_weights=count * inputs * outputs,
            shape=f"{rows}x{inputs} → {rows}x{outputs}",
            out_features=outputs,
        )

    def _mixer(self, kind: str, count: int) -> Iterator[Operator]:
        own = self.dimensions
        if kind == "linear_attention":
            assert own.delta is not None
            yield from self._delta(own.delta, count)
        elif own.latent is not None:
            yield from self._latent(own.latent, kind, count)
        else:
            yield from self._attention(kind, count)

    def _attention(self, kind: str, count: int) -> Iterator[Operator]:
        own = self.dimensions
        inner, kv = own.num_heads * own.head_dim, own.num_kv_heads * own.head_dim
        yield self.linear("qkv_proj", kind, count, own.hidden, inner * (2 if own.has_output_gate else 1) + 2 * kv)
        window = own.sliding_window if kind == "sliding_attention" else None
        yield self._scores(kind, count, own.num_heads, own.head_dim, own.head_dim, 2 * kv, window)
        if own.has_output_gate:
            yield self._pointwise("activation", kind, count, 2 * inner, inner)
        yield self.linear("o_proj", kind, count, inner, own.hidden)

    def _latent(self, latent: Latent, kind: str, count: int) -> Iterator[Operator]:
        """Absorbed, as decode computes it: queries and values stay in the latent space."""
        own = self.dimensions
        queries, kept = own.num_heads * (latent.nope_dim + latent.rope_dim), latent.kv_rank + latent.rope_dim
        if latent.query_rank is None:
            yield self.linear("q_proj", kind, count, own.hidden, queries)
        else:
            yield self.linear("q_a_proj", kind, count, own.hidden, latent.query_rank)
            yield self.linear("q_b_proj", kind, count, latent.query_rank, queries)
        yield self.linear("kv_a_proj", kind, count, own.hidden, kept)
        yield self.linear(
            "kv_b_proj", kind, count, latent.kv_rank, own.num_heads * (latent.nope_dim + latent.value_dim)
        )
        yield self._scores(kind, count, own.num_heads, kept, latent.kv_rank, kept, None)
        yield self.linear("o_proj", kind, count, own.num_heads * latent.value_dim, own.hidden)

    def _scores(
        self, kind: str, count: int, heads: int, key: int, value: int, kept: int, window: int | None
    ) -> Operator:
        """Queries against keys, weights against values; reads what the cache keeps of tokens seen, writes the new."""
        batch, size = self.batch, self.precision
        seen = batch.num_context_tokens + batch.num_query_tokens
        seen = seen if window is None else min(seen, window + batch.num_query_tokens - 1)
        cached = batch.num_requests * (seen + batch.num_query_tokens) * kept * size.cache_bytes
        moved = cached + batch.num_tokens * heads * (key + value) * size.activation_bytes
        return Operator(
            name="attention",
            layer_kind=kind,
            count=count,
            flops=2.0 * count * heads * (key + value) * batch.num_pairs(window),
            num_bytes=count * moved,
            num_weights=0,
            shape=f"{batch.num_requests}x{batch.num_query_tokens}x{heads}x{key} over {seen}",
        )

    def _delta(self, delta: Delta, count: int) -> Iterator[Operator]:
        own, batch, size, kind = self.dimensions, self.batch, self.precision, "linear_attention"
        inner = delta.num_value_heads * delta.value_dim
        yield self.linear("in_proj_qkvz", kind, count, own.hidden, delta.num_channels + inner)
        yield self.linear("in_proj_ba", kind, count, own.hidden, 2 * delta.num_value_heads)
        kernel = delta.num_channels * delta.conv_width
        states = (
            2 * batch.num_requests * (delta.num_state * size.state_bytes + delta.num_conv_state * size.activation_bytes)
        )  # read and written
        passed = batch.num_tokens * (3 * delta.num_channels + inner) * size.activation_bytes
        yield Operator(
            name="linear_attention",
            layer_kind=kind,
            count=count,
            flops=count * batch.num_tokens * (7.0 * delta.num_state + 2.0 * kernel),
            num_bytes=count * (states + passed + kernel * size.weight_bytes),
            num_weights=count * (kernel + 2 * delta.num_value_heads),
            shape=f"{batch.num_tokens}x{delta.num_channels}, {delta.num_value_heads}x{delta.key_dim}x{delta.value_dim}",
        )
        yield self.linear("out_proj", kind, count, inner, own.hidden)

    def _feed(self, count: int, intermediate: int, kind: str = "every") -> Iterator[Operator]:
        hidden = self.dimensions.hidden
        yield self.linear("gate_up_proj", kind, count, hidden, 2 * intermediate)
        yield self._pointwise("activation", kind, count, 2 * intermediate, intermediate)
        yield self.linear("down_proj", kind, count, intermediate, hidden)

    def _experts(self, experts: Experts, count: int) -> Iterator[Operator]:
        hidden, tokens, size = self.dimensions.hidden, self.batch.num_tokens, self.precision
        yield self.linear("gate", "experts", count, hidden, experts.num_experts)
        one = 3 * hidden * experts.intermediate
        distinct = experts.num_experts * (1 - (1 - experts.num_active / experts.num_experts) ** tokens)
        passed = tokens * experts.num_active * (2 * hidden + 3 * experts.intermediate) * size.activation_bytes
        yield Operator(
            name="moe",
            layer_kind="experts",
            count=count,
            flops=2.0 * count * tokens * experts.num_active * one,
            num_bytes=count * (distinct * one * size.weight_bytes + passed),
            num_weights=count * experts.num_experts * one,
            shape=f"{tokens}x{hidden}, {experts.num_active} of {experts.num_experts}",
        )
        if experts.has_shared_gate:
            yield self.linear("shared_expert_gate", "experts", count, hidden, 1)
        if experts.shared_intermediate:
            yield from self._feed(count, experts.shared_intermediate, "shared expert")

    def _pointwise(self, name: str, kind: str, count: int, inputs: int, outputs: int) -> Operator:
        """A few operations on every element: bytes are what counts."""
        tokens = self.batch.num_tokens
        return Operator(
            name=name,
            layer_kind=kind,
            count=count,
            flops=4.0 * count * tokens * outputs,
            num_bytes=count * tokens * (inputs + outputs) * self.precision.activation_bytes,
            num_weights=0,
            shape=f"{tokens}x{inputs} → {tokens}x{outputs}",
        )

    def _norms(self) -> Operator:
        """Two in each layer, with the residual (read and written too), a last one, and those inside the mixers."""
        own, tokens, size = self.dimensions, self.batch.num_tokens, self.precision
        num_outer = 2 * len(own.layers) + 1
        inner = own.num_attention_layers * (own.num_heads + own.num_kv_heads) * own.head_dim if own.has_qk_norm else 0
        weights = num_outer * own.hidden + (2 * own.num_attention_layers * own.head_dim if own.has_qk_norm else 0)
        moved = 4 * num_outer * own.hidden + 2 * inner
        if own.delta is not None:  # gated: the output and its gate are read
            inner_delta = own.num_delta_layers * own.delta.num_value_heads * own.delta.value_dim
            inner, moved = inner + inner_delta, moved + 3 * inner_delta
            weights += own.num_delta_layers * own.delta.value_dim
        return Operator(
            name="norm",
            layer_kind="every",
            count=num_outer,
            flops=4.0 * tokens * (num_outer * own.hidden + inner),
            num_bytes=tokens * moved * size.activation_bytes + weights * size.activation_bytes,
            num_weights=weights,
            shape=f"{tokens}x{own.hidden}",
        )

    def _embedding(self) -> Operator:
        """Rows of a table: moved, not multiplied."""
        own, tokens = self.dimensions, self.batch.num_tokens
        return Operator(
            name="embedding",
            layer_kind="model",
            count=1,
            flops=0.0,
            num_bytes=2.0 * tokens * own.hidden * self.precision.activation_bytes,
            num_weights=0 if own.has_tied_head else own.vocab * own.hidden,
            shape=f"{tokens} → {tokens}x{own.hidden}",
        )

    def _head(self) -> Iterator[Operator]:
        own, rows = self.dimensions, self.batch.num_scored
        yield self.linear("lm_head", "model", 1, own.hidden, own.vocab, rows)
        yield Operator(
            name="sampling",
            layer_kind="model",
            count=1,
            flops=float(rows * own.vocab),
            num_bytes=rows * own.vocab * self.precision.activation_bytes,
            num_weights=0,
            shape=f"{rows}x{own.vocab} → {rows}",
        )
