"""Weights: what a token must read and pass at least, and less wherever it is not sure."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from loop.weights import Weights, read_weights

SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4}
LAYERS = {f"model.layers.{i}.mlp.up_proj.weight": ("BF16", [10, 10]) for i in range(4)}
HEAD = {"lm_head.weight": ("BF16", [50, 10])}
TABLE = {"model.embed_tokens.weight": ("BF16", [50, 10])}


def checkpoint(root: Path, tensors: dict[str, tuple[str, list[int]]], **config: Any) -> Path:
    """A model directory with these tensors; what they hold nobody reads."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype] * shape[0] * shape[1]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {}, **header}).encode()
    root.mkdir(exist_ok=True)
    (root / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (root / "config.json").write_text(json.dumps({"num_hidden_layers": 4, **config}))
    return root


def weighed(root: Path, *parts: dict[str, tuple[str, list[int]]], **config: Any) -> Weights:
    """The weights of a checkpoint of these parts."""
    found = read_weights(checkpoint(root / "model", {k: v for part in parts for k, v in part.items()}, **config))
    assert found is not None
    return found


def test_a_token_reads_the_layers_and_the_head(tmp_path: Path) -> None:
    """Not the table of embeddings: of that, one row. The last layer owes a prompt's last token alone."""
    found = weighed(tmp_path, LAYERS, HEAD, TABLE)

    assert (2 * 400 + 2 * 500, 300, 16) == (found.num_decode_bytes, found.num_prompt_params, found.num_bits)
    assert 1400 == found.num_params


def test_a_tied_head_is_the_table(tmp_path: Path) -> None:
    """It is read whole for every token."""
    assert 2 * 400 + 2 * 500 == weighed(tmp_path, LAYERS, TABLE).num_decode_bytes


@pytest.mark.parametrize(
    ("config", "share"),
    [
        ({"num_experts": 8, "num_experts_per_tok": 2}, 0.25),
        ({"n_routed_experts": 4, "num_experts_per_tok": 1}, 0.25),
        ({"text_config": {"num_local_experts": 8, "num_experts_per_tok": 2}}, 0.25),
        ({"num_experts": 8}, 0.0),
    ],
)
def test_of_experts_those_count_that_a_token_passes(tmp_path: Path, config: dict[str, Any], share: float) -> None:
    """As the config says; where it does not, none is sure. Shared experts always count."""
    experts = {f"model.layers.0.mlp.experts.{i}.w.weight": ("BF16", [10, 10]) for i in range(8)}
    shared = {"model.layers.0.mlp.shared_experts.w.weight": ("BF16", [10, 10])}

    found = weighed(tmp_path, LAYERS, HEAD, experts, shared, **config)

    assert 2 * (400 + 500 + 100 + share * 800) == found.num_decode_bytes


def test_what_a_text_token_need_not_pass_is_left_out(tmp_path: Path) -> None:
    """Eyes, ears, draft heads, and layers beyond the config's last."""
    aside = {
        name: ("BF16", [10, 10])
        for name in (
            "model.visual.blocks.0.attn.weight",
            "vision_tower.layers.0.w.weight",
            "audio_tower.layers.0.w.weight",
            "mtp.layers.0.w.weight",
            "model.layers.4.eh_proj.weight",
        )
    }

    assert weighed(tmp_path, LAYERS, HEAD).num_decode_bytes == weighed(tmp_path, LAYERS, HEAD, aside).num_decode_bytes


def test_layers_that_share_keys_and_values_owe_the_last_token_alone(tmp_path: Path) -> None:
    """Of four layers two, and the last one anyway."""
    assert 100 == weighed(tmp_path, LAYERS, HEAD, num_kv_shared_layers=2).num_prompt_params


@pytest.mark.parametrize(("dtype", "num_bits"), [("BF16", 16), ("F32", 32), ("F8_E4M3", 8), ("I32", 4)])
def test_the_bits_of_a_weight_are_those_of_most_layers(tmp_path: Path, dtype: str, num_bits: int) -> None:
    """Packed words hold weights of four bits."""
    layers = {name: (dtype, shape) for name, (_, shape) in LAYERS.items()}

    assert num_bits == weighed(tmp_path, layers, HEAD).num_bits


def test_the_synthetic_checkpoint_has_weights(model: Path) -> None:
    """Read from headers alone."""
    found = read_weights(model)

    assert found is not None
    assert 0 < found.num_prompt_params * 2 < found.num_decode_bytes < found.num_bytes


def test_what_cannot_be_understood_has_none(tmp_path: Path) -> None:
    """No weights, no safetensors, a file that was cut off: then nothing but backstops bounds it."""
    root = checkpoint(tmp_path / "model", LAYERS)
    (root / "model.safetensors").write_bytes(b"\x00" * 4)
    assert read_weights(root) is None
    (root / "model.safetensors").rename(root / "model.bin")
    assert read_weights(root) is None
    assert read_weights(tmp_path) is None
