"""The shape of a model, read from its config.json: Qwen3, or the text part of Qwen3.5."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loop.errors import InputError
from loop.wording import count

# Real Qwen3 in about 4 MB. head_dim 128 has rotary pairs enough to look 296 tokens back (kernel.py).
TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": 256,
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 640,
    "max_position_embeddings": 32768,
    "max_window_layers": 5,
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 1600,
}


@dataclass(frozen=True)
class Geometry:
    """What the construction needs to know of a model. Sizes are counts of elements."""

    config: dict[str, Any]  # what is written as config.json: flat, text only
    family: str  # qwen3 | qwen3_5
    vocab: int
    hidden: int
    intermediate: int
    layer_kinds: tuple[str, ...]  # full_attention | linear_attention
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    max_positions: int
    tied: bool
    mtp: bool
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0  # of one gated-delta-net head
    value_dim: int = 0
    conv: int = 0

    @property
    def is_zero_centered(self) -> bool:
        """Qwen3.5 stores RMSNorm weights minus one (all but the gated one)."""
        return self.family == "qwen3_5"

    @property
    def reserved(self) -> frozenset[int]:
        """Ids that must never be generated: they end or pad a text."""
        ids: set[int] = set()
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            value = self.config.get(key)
            ids.update(value if isinstance(value, list) else [] if value is None else [value])
        return frozenset(ids)


def load_geometry(source: str | Path) -> Geometry:
    """`"tiny"`, a config.json, or a directory that has one."""
    if str(source) == "tiny":
        return parse_geometry(dict(TINY), "tiny")
    path = Path(source)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"no model geometry at {path}: {error.strerror}", next='give "tiny" or the path of a config.json'
        ) from error
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON: {error}", next="give the config.json of a Qwen3 or Qwen3.5 model"
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"{path} does not hold a JSON object", next="give the config.json of a Qwen3 or Qwen3.5 model")
    return parse_geometry(config, str(path))


def parse_geometry(config: dict[str, Any], where: str) -> Geometry:
    """Check `config` (its `text_config` when it has one) and flatten it."""
    text = _flatten(config)
    kind = str(text.get("model_type"))
    if kind not in ("qwen3", "qwen3_5_text"):
        raise InputError(
            f"{where}: model_type {kind!r} cannot be generated", next="use a dense Qwen3 or Qwen3.5 config.json"
        )
    family = "qwen3" if kind == "qwen3" else "qwen3_5"
    for key in ("attention_bias", "quantization_config", "use_sliding_window", "num_experts"):
        if text.get(key):
            raise InputError(
                f"{where}: {key} = {text[key]!r} is not supported", next=f"remove {key} from a copy of the file"
            )
    rope = {**text, **(text.get("rope_parameters") or text.get("rope_scaling") or {})}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise InputError(
            f"{where}: rope type {rope.get('rope_type')!r} is not supported", next='use rope_type "default"'
        )
    try:
        layers, head_dim = (
            int(text["num_hidden_layers"]),
            int(text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]),
        )
        interval = int(text.get("full_attention_interval", 4))
        kinds = text.get("layer_types") or [
            "full_attention" if family == "qwen3" or (i + 1) % interval == 0 else "linear_attention"
            for i in range(layers)
        ]
        rotary = head_dim if family == "qwen3" else int(head_dim * rope.get("partial_rotary_factor", 0.25))
        linear = "linear_attention" in kinds
        geometry = Geometry(
            config=text,
            family=family,
            vocab=int(text["vocab_size"]),
            hidden=int(text["hidden_size"]),
            intermediate=int(text["intermediate_size"]),
            layer_kinds=tuple(kinds),
            heads=int(text["num_attention_heads"]),
            kv_heads=int(text["num_key_value_heads"]),
            head_dim=head_dim,
            rotary_dim=rotary,
            rope_theta=float(rope.get("rope_theta", 10_000.0)),
            max_positions=int(text["max_position_embeddings"]),
            tied=bool(text.get("tie_word_embeddings", False)),
            mtp=family == "qwen3_5" and int(text.get("mtp_num_hidden_layers", 0)) > 0,
            key_heads=int(text["linear_num_key_heads"]) if linear else 0,
            value_heads=int(text["linear_num_value_heads"]) if linear else 0,
            key_dim=int(text["linear_key_head_dim"]) if linear else 0,
            value_dim=int(text["linear_value_head_dim"]) if linear else 0,
            conv=int(text["linear_conv_kernel_dim"]) if linear else 0,
        )
    except KeyError as error:
        raise InputError(
            f"{where}: {error.args[0]} is missing", next="give the complete config.json of the model"
        ) from error
    if len(geometry.layer_kinds) != layers or set(kinds) - {"full_attention", "linear_attention"}:
        raise InputError(
            f"{where}: layer_types does not fit {count(layers, 'layer')}", next="list one known type per layer"
        )
    return geometry


def _flatten(config: dict[str, Any]) -> dict[str, Any]:
    """A text-only config: the vision tower of a multimodal one is left out, so that no image files are needed."""
    text = dict(config.get("text_config") or config)
    if "text_config" in config:
        text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
        for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
            text.setdefault(key, config.get(key))
    if text.get("model_type") == "qwen3_5_text":
        text["architectures"] = ["Qwen3_5ForCausalLM"]
    text["dtype"] = "bfloat16"
    return text
