"""The dimensions of a model: what its `config.json` says of its layers, and how many weights each of them has.

Names of fields are those of transformers' configs; nested `text_config` and the spellings of the usual families are
read alike. What a config does not say is None.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from loop.errors import InputError
from loop.record import Record

LayerKind = Literal["full_attention", "sliding_attention", "linear_attention"]
BYTES: Mapping[str, float] = {
    "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp4_e2m1": 0.5,
}  # fmt: skip
"""Of one element, by the names that configs, SGLang's flags and its logs use."""


class Delta(Record):
    """A gated delta net (Yang et al. 2024, arXiv:2412.06464). Heads and elements of one layer."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def num_channels(self) -> int:
        """Queries, keys and values of one token: what the convolution passes over."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def num_state(self) -> int:
        """Elements of the recurrent state of one request."""
        return self.num_value_heads * self.key_dim * self.value_dim

    @property
    def num_conv_state(self) -> int:
        """Elements that the convolution remembers of one request."""
        return self.num_channels * (self.conv_width - 1)

    def num_params(self, hidden: int) -> int:
        """Weights of one layer without its outer norm."""
        inner = self.num_value_heads * self.value_dim
        vectors = 2 * self.num_value_heads + self.value_dim + self.num_channels * self.conv_width
        return hidden * (self.num_channels + inner + 2 * self.num_value_heads) + inner * hidden + vectors


class Latent(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class Experts(Record):
    """A mixture of experts."""

    num_experts: int
    num_active: int
    intermediate: int
    shared_intermediate: int
    """Of all shared experts together; 0 without one."""
    has_shared_gate: bool
    layers: tuple[bool, ...]
    """Which layers have experts; the others are dense."""


class Dimensions(Record):
    """One decoder. Sizes count elements."""

    hidden: int
    intermediate: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerKind, ...]
    has_output_gate: bool
    """Full attention multiplies its output by a gate, which the query projection makes."""
    has_qk_norm: bool
    has_tied_head: bool
    delta: Delta | None
    latent: Latent | None
    experts: Experts | None
    num_draft_layers: int
    """Multi-token-prediction layers in the checkpoint."""
    sliding_window: int | None
    weight_bytes: float
    """Of one weight."""
    state_dtype: str | None
    """Of the recurrent state, where the config says it."""

    @classmethod
    def read(cls, source: Path) -> Self:
        """From a `config.json` or the directory it lies in. Raises InputError naming what is wrong or missing."""
        path = source / "config.json" if source.is_dir() else source
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as problem:
            raise InputError(f"{path} cannot be read: {problem.strerror}", next="give a model directory") from None
        except ValueError as problem:
            raise InputError(f"{path} is not JSON: {problem}", next="give the config.json of a model") from None
        if not isinstance(document, dict):
            raise InputError(f"{path} does not hold a JSON object", next="give the config.json of a model")
        try:
            return cls.of(document)
        except (KeyError, TypeError, ValueError) as problem:
            raise InputError(
                f"{path} does not describe a decoder that is known here: {problem!r}",
                next="give the config.json of the model itself, as its checkpoint has it",
            ) from None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """From a parsed config. Raises KeyError for what must be there and is not."""
        config = {**document, **(document.get("text_config") or document.get("llm_config") or {})}
        heads = int(config["num_attention_heads"])
        kinds = _layers(config)
        return cls(
            hidden=int(config["hidden_size"]),
            intermediate=int(config.get("intermediate_size") or 0),
            vocab=int(config["vocab_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            layers=kinds,
            has_output_gate=bool(config.get("attn_output_gate")),
            has_qk_norm=str(config.get("model_type", "")).startswith(("qwen3", "gemma3")),
            has_tied_head=bool(config.get("tie_word_embeddings", document.get("tie_word_embeddings", False))),
            delta=_delta(config) if "linear_attention" in kinds else None,
            latent=_latent(config) if config.get("kv_lora_rank") else None,
            experts=_experts(config, len(kinds)),
            num_draft_layers=int(config.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers") or 0),
            sliding_window=config.get("sliding_window") if "sliding_attention" in kinds else None,
            weight_bytes=_weight_bytes(config),
            state_dtype=config.get("mamba_ssm_dtype"),
        )

    @property
    def num_attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return len(self.layers) - self.num_delta_layers

    @property
    def num_delta_layers(self) -> int:
        """Layers that keep a recurrent state."""
        return self.layers.count("linear_attention")

    @property
    def num_params(self) -> int:
        """All weights, drafts included; without biases, which are too few to matter, and vision towers."""
        hidden = self.hidden
        draft = self.num_draft_layers and 2 * hidden * hidden + 3 * hidden  # two norms before it, one after
        draft += self.num_draft_layers * self._num_layer_params("full_attention", experts=self.experts is not None)
        own = sum(
            self._num_layer_params(kind, experts=self.experts is not None and self.experts.layers[number])
            for number, kind in enumerate(self.layers)
        )
        tables = self.vocab * hidden * (1 if self.has_tied_head else 2)
        return own + tables + hidden + draft

    def kv_bytes(self, element_bytes: float, num_shards: int = 1) -> float:
        """Keys and values of one token, in all layers, on one of `num_shards` GPUs that share the heads."""
        if self.latent is not None:  # every GPU needs the whole latent
            return (self.latent.kv_rank + self.latent.rope_dim) * self.num_attention_layers * element_bytes
        heads = max(1, self.num_kv_heads // num_shards)
        return 2 * heads * self.head_dim * self.num_attention_layers * element_bytes

    def state_bytes(self, state_element_bytes: float, conv_element_bytes: float, num_shards: int = 1) -> float:
        """Recurrent state of one request, in all layers, on one of `num_shards` GPUs; 0 for a model without one."""
        if self.delta is None:
            return 0.0
        own = self.delta.num_state * state_element_bytes + self.delta.num_conv_state * conv_element_bytes
        return self.num_delta_layers * own / num_shards

    def _num_layer_params(self, kind: LayerKind, *, experts: bool) -> int:
        hidden = self.hidden
        if kind == "linear_attention" and self.delta is not None:
            mixer = self.delta.num_params(hidden)
        elif self.latent is not None:
            mixer = self._num_latent_params(self.latent)
        else:
            inner, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
            mixer = hidden * (inner * (2 if self.has_output_gate else 1) + 2 * kv) + inner * hidden
            mixer += 2 * self.head_dim if self.has_qk_norm else 0
        if experts and self.experts is not None:
            own = self.experts
            feed = 3 * hidden * (own.num_experts * own.intermediate + own.shared_intermediate)
            feed += hidden * own.num_experts + (hidden if own.has_shared_gate else 0)
        else:
            feed = 3 * hidden * self.intermediate
        return mixer + feed + 2 * hidden

    def _num_latent_params(self, latent: Latent) -> int:
        hidden, queries = self.hidden, self.num_heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        query = hidden * queries if rank is None else hidden * rank + rank + rank * queries
        down = hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        up = latent.kv_rank * self.num_heads * (latent.nope_dim + latent.value_dim)
        return query + down + up + self.num_heads * latent.value_dim * hidden


def element_bytes(dtype: str | None) -> float | None:
    """Of a dtype by any of its names (`torch.bfloat16`, `fp8_e4m3`); None for one that is not known."""
    return None if dtype is None else BYTES.get(dtype.removeprefix("torch."))


def _layers(config: Mapping[str, Any]) -> tuple[LayerKind, ...]:
    num = int(config["num_hidden_layers"])
    named: Sequence[Any] = config.get("layer_types") or ()
    if named:
        return tuple(_kind(str(name)) for name in named)
    interval = config.get("full_attention_interval")
    if interval:  # Qwen3-Next and Qwen3.5: every so many layers one attends to everything
        names = ("linear_attention", "full_attention")
        return tuple(_kind(names[(i + 1) % int(interval) == 0]) for i in range(num))
    return tuple(_kind("full_attention") for _ in range(num))


def _kind(name: str) -> LayerKind:
    if name in ("full_attention", "sliding_attention", "linear_attention"):
        return name  # type: ignore[return-value]  # narrowed to the literal by the test
    if name == "attention":
        return "full_attention"
    raise ValueError(f"a layer of type {name!r}")


def _delta(config: Mapping[str, Any]) -> Delta:
    return Delta(
        num_key_heads=int(config["linear_num_key_heads"]),
        num_value_heads=int(config["linear_num_value_heads"]),
        key_dim=int(config["linear_key_head_dim"]),
        value_dim=int(config["linear_value_head_dim"]),
        conv_width=int(config["linear_conv_kernel_dim"]),
    )


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        query_rank=config.get("q_lora_rank"),
        kv_rank=int(config["kv_lora_rank"]),
        nope_dim=int(config["qk_nope_head_dim"]),
        rope_dim=int(config["qk_rope_head_dim"]),
        value_dim=int(config["v_head_dim"]),
    )


def _experts(config: Mapping[str, Any], num_layers: int) -> Experts | None:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    num = next((int(config[name]) for name in names if config.get(name)), 0)
    if not num:
        return None
    intermediate = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    num_shared = int(config.get("n_shared_experts") or 0)
    first, step = int(config.get("first_k_dense_replace") or 0), int(config.get("decoder_sparse_step") or 1)
    dense = set(config.get("mlp_only_layers") or ())
    return Experts(
        num_experts=num,
        num_active=int(config["num_experts_per_tok"]),
        intermediate=intermediate,
        shared_intermediate=shared or num_shared * intermediate,
        has_shared_gate=bool(shared),
        layers=tuple(i >= first and i not in dense and (i + 1) % step == 0 for i in range(num_layers)),
    )


def _weight_bytes(config: Mapping[str, Any]) -> float:
    """Of most weights: as quantized, else as the dtype says; two bytes where nothing does."""
    quantization = config.get("quantization_config") or {}
    bits = quantization.get("bits") or quantization.get("num_bits")
    if bits:
        return int(bits) / 8
    if quantization.get("quant_method") in ("fp8", "fbgemm_fp8", "modelopt"):
        return 1.0
    return element_bytes(config.get("dtype") or config.get("torch_dtype")) or 2.0
