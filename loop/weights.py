"""The weights of a model: what no server that really runs it can do without, from its config and its tensors' headers.

Where it is not sure, it counts less: a bound that is too low refuses nobody who is honest.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loop.checkpoint import read_tensors, weight_files
from loop.record import Record

BITS: Mapping[str, int] = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "I32": 32, "U32": 32, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element by safetensors' names."""
PACKED = frozenset({"I32", "U32", "U8"})
"""How quantized checkpoints store several weights of 4 bits in one element."""
PACKED_BITS = 4
ASIDE = re.compile(r"(^|\.)(visual|vision\w*|audio\w*|image\w*|mm_projector|multi_modal_projector|mtp\w*|eagle\w*)\.")
"""Parts that a text token need not pass: other modalities, heads that only guess ahead."""
EMBEDDING = re.compile(r"(embed_tokens\w*|tok_embeddings|word_embeddings|wte|wpe)\.weight$")
HEAD = re.compile(r"^(\w*model\.)*(lm_head|output)\.weight$")
LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
EXPERT = ".experts."
NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
NUM_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")


class Weights(Record):
    """What the physics of a model needs. Of a mixture of experts only those count that one token passes."""

    num_bytes: int
    """Of all weight files."""
    num_params: int
    """Elements of all tensors; several weights packed in one element count once."""
    num_decode_bytes: int
    """What must be read for one generated token: the layers and the head, without the table of embeddings."""
    num_prompt_params: int
    """Weights that every prompt token is multiplied with: most layers alone."""
    num_bits: int
    """Of one weight, in most of the layers' bytes."""


def read_weights(model: Path) -> Weights | None:
    """Of the checkpoint in `model`; None where it has no safetensors, or none that can be understood."""
    files = weight_files(model)
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        tensors = {name: t for f in files if f.suffix == ".safetensors" for name, t in read_tensors(f).items()}
        return _weigh({**config, **(config.get("text_config") or {})}, tensors, sum(f.stat().st_size for f in files))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _weigh(config: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Any]], num_bytes: int) -> Weights | None:
    """The sums, tensor by tensor."""
    if not tensors:
        return None
    share = _expert_share(config)
    num_layers = config.get("num_hidden_layers")
    has_head = any(HEAD.search(name) for name in tensors)
    total = 0
    decode, prompt = 0.0, 0.0
    bytes_of: Counter[int] = Counter()
    for name, tensor in tensors.items():
        num, size = math.prod(tensor["shape"]), tensor["data_offsets"][1] - tensor["data_offsets"][0]
        total += num
        layer = LAYER.search(name)
        if ASIDE.search(name) or (layer and num_layers and int(layer[1]) >= num_layers):
            continue
        if HEAD.search(name) or (EMBEDDING.search(name) and not has_head):
            decode += size
        elif layer:
            part = share if EXPERT in name else 1.0
            decode += part * size
            prompt += part * num
            bytes_of[PACKED_BITS if tensor["dtype"] in PACKED else BITS[tensor["dtype"]]] += size
    if not bytes_of:
        return None
    return Weights(
        num_bytes=num_bytes,
        num_params=total,
        num_decode_bytes=int(decode),
        num_prompt_params=int(prompt * _prompt_share(config)),
        num_bits=bytes_of.most_common(1)[0][0],
    )


def _expert_share(config: Mapping[str, Any]) -> float:
    """Of all experts, those that one token passes; none of them is sure where the config does not say."""
    num = next((config[name] for name in NUM_EXPERTS if config.get(name)), None)
    active = next((config[name] for name in NUM_ACTIVE if config.get(name)), None)
    return min(1.0, active / num) if num and active else 0.0


def _prompt_share(config: Mapping[str, Any]) -> float:
    """Of all layers, those that every prompt token passes.

    Only the last token need pass the last layer, and those layers that use the keys and values of others.
    """
    num_layers = config.get("num_hidden_layers") or 0
    idle = 1 + (config.get("num_kv_shared_layers") or 0)
    return max(0.0, 1 - idle / num_layers) if num_layers else 0.0
