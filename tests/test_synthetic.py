"""Synthetic checkpoints without torch: bytes, tokenizer, refusals, atomicity."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from loop.errors import InputError
from loop.synthetic import generate
from loop.synthetic.bf16 import round_to_bf16, widen_bf16
from loop.synthetic.geometry import TINY, load_geometry
from loop.synthetic.kernel import GAP, START_GAP, build_kernel
from loop.synthetic.tokenizer import CHAT_TEMPLATE, SPECIALS, tiny_vocab_size
from loop.synthetic.words import WORDS

HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "tie_word_embeddings": True,
    "eos_token_id": 258,
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 1600,
        "hidden_size": 128,
        "intermediate_size": 640,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    },
}


def hash_files(directory: Path) -> dict[str, str]:
    """Digest of every file, by name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return generate(tmp_path_factory.mktemp("synthetic") / "tiny")


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    """A config.json with this content."""
    path = directory / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_same_seed_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    """Two runs with one seed agree in every file; another seed changes the weights only."""
    assert hash_files(generate(tmp_path / "again")) == hash_files(tiny)
    other = hash_files(generate(tmp_path / "other", seed=1))
    assert {name for name, digest in hash_files(tiny).items() if other[name] != digest} == {"model.safetensors"}


def test_tiny_is_a_few_megabytes_of_finite_bf16(tiny: Path) -> None:
    """The checkpoint is small, loads with safetensors, and holds no NaN, infinity or all-zero matrix."""
    assert sum(path.stat().st_size for path in tiny.iterdir()) < 6_000_000
    with safe_open(tiny / "model.safetensors", framework="np") as file:
        names = set(file.keys())
        header = {name: file.get_slice(name).get_dtype() for name in names}
    assert set(header.values()) == {"BF16"}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_norm.weight"} <= names
    raw = (tiny / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    described = json.loads(raw[8 : 8 + size])
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        values = widen_bf16(np.frombuffer(raw[8 + size + start : 8 + size + end], dtype="<u2"))
        assert values.size == np.prod(entry["shape"])
        assert np.isfinite(values).all()
        assert (values != 0).mean() > 0.9, name


def test_config_is_real_qwen3(tiny: Path) -> None:
    """config.json names the architecture servers know, and its vocabulary holds the tokenizer."""
    config = json.loads((tiny / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] == tiny_vocab_size() == TINY["vocab_size"]
    assert config["max_position_embeddings"] == 32768
    assert config["eos_token_id"] == 256 + SPECIALS.index("<|im_end|>")


@given(st.text())
def test_tokenizer_returns_any_text(tokenizer: Tokenizer, text: str) -> None:
    """Whatever the script, encoding and decoding gives the text back."""
    if any(special in text for special in SPECIALS):
        return
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["日本語と한국어", "👩‍👩‍👧‍👦🏳️‍🌈", "line\u2028next\u2029", "\x00\x7f", " able  about\n\tabove", "נקודה"]
)
def test_tokenizer_returns_hard_text(tokenizer: Tokenizer, text: str) -> None:
    """Scripts without spaces, joined emoji, line separators and control characters survive."""
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_word_is_one_token(tokenizer: Tokenizer) -> None:
    """Generated text is words, and encodes again to the tokens that were generated."""
    words = WORDS.split()
    ids = [tokenizer.token_to_id("\u0120" + word) for word in words]
    assert None not in ids
    assert tokenizer.encode(" " + " ".join(words)).ids == ids


def test_chat_template_takes_openai_messages() -> None:
    """Roles, content parts, empty content and tool calls are rendered as ChatML."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": ""},
    ]
    environment = jinja2.Environment(autoescape=False)  # noqa: S701 - it makes prompts, not pages
    text = environment.from_string(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n"
        '<|im_start|>assistant\n[{"id": "1"}]<|im_end|>\n<|im_start|>tool\n<|im_end|>\n<|im_start|>assistant\n'
    )


def test_hybrid_config_is_flattened(tmp_path: Path) -> None:
    """A multimodal Qwen3.5 config gives a text-only one, with the draft layer and its tokenizer's absence noticed."""
    directory = generate(tmp_path / "out", geometry=write_config(tmp_path, HYBRID))
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 258
    assert not (directory / "tokenizer.json").exists()
    with safe_open(directory / "model.safetensors", framework="np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - not a dict
    assert "lm_head.weight" not in shapes
    assert shapes["mtp.fc.weight"] == (128, 256)
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (256, 1, 4)
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (2 * 256 * 2, 128)


def test_tokenizer_is_copied_from_beside_the_config(tiny: Path, tmp_path: Path) -> None:
    """Tokenizer files beside a config.json come along, and so do explicitly named ones."""
    beside = generate(tmp_path / "beside", geometry=tiny)
    named = generate(tmp_path / "named", geometry=write_config(tmp_path, HYBRID), tokenizer=tiny / "tokenizer.json")
    expected = (tiny / "tokenizer.json").read_bytes()
    assert (beside / "tokenizer.json").read_bytes() == (named / "tokenizer.json").read_bytes() == expected
    assert (named / "tokenizer_config.json").is_file()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "llama"}, "dense Qwen3"),
        ({"hidden_size": 16}, "hidden >="),
        ({"intermediate_size": 64}, "intermediate >="),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type"),
        ({"layer_types": ["full_attention"]}, "one known type per layer"),
        ({"head_dim": 4}, "head_dim"),
    ],
)
def test_bad_geometry_is_refused_with_the_way_out(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """What cannot be built is refused before anything is written, and the message says what would do."""
    source = tmp_path / "source"
    source.mkdir()
    path = write_config(source, TINY | change)
    with pytest.raises(InputError) as caught:
        generate(tmp_path / "out", geometry=path)
    assert says in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source"]


def test_missing_fields_are_named(tmp_path: Path) -> None:
    """A config without its sizes is refused by the name of what is missing."""
    config = {key: value for key, value in TINY.items() if key != "num_attention_heads"}
    with pytest.raises(InputError, match="num_attention_heads"):
        generate(tmp_path / "out", geometry=write_config(tmp_path, config))


@pytest.mark.parametrize("content", ["not json", "[1]"])
def test_unreadable_geometry_is_refused(tmp_path: Path, content: str) -> None:
    """Neither a missing file nor one of another kind is taken for a model."""
    (tmp_path / "config.json").write_text(content)
    for geometry in (tmp_path / "config.json", tmp_path / "absent.json"):
        with pytest.raises(InputError):
            generate(tmp_path / "out", geometry=geometry)


def test_a_directory_with_content_is_never_overwritten(tmp_path: Path) -> None:
    """An empty directory is filled; one that holds anything is refused and left as it is."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "note").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        generate(kept)
    assert hash_files(kept).keys() == {"note"}
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (generate(empty) / "config.json").is_file()


def test_a_failure_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    """A tokenizer too large for the model is found while building; the half-built directory goes away."""
    source = tmp_path / "source"
    source.mkdir()
    path = write_config(source, TINY | {"vocab_size": 700})
    with pytest.raises(InputError, match="embeddings"):
        generate(tmp_path / "out", geometry=path, tokenizer=tiny)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source"]


def test_large_models_are_sharded(tmp_path: Path, tiny: Path) -> None:
    """Numbered files and an index are written when one file would grow too large, with the same tensors."""
    from loop.synthetic.model import build_model
    from loop.synthetic.shards import write_shards
    from loop.synthetic.tokenizer import write_tiny_tokenizer

    words = write_tiny_tokenizer(tmp_path)
    write_shards(tmp_path, build_model(load_geometry("tiny"), words, 0), shard_bytes=1_000_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    with safe_open(tiny / "model.safetensors", framework="np") as whole:
        assert set(index["weight_map"]) == set(whole.keys())
    files = set(index["weight_map"].values())
    assert len(files) > 3
    assert all((tmp_path / name).stat().st_size < 1_100_000 for name in files)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100))
def test_bf16_rounds_to_the_nearest(value: float) -> None:
    """No other bf16 is nearer, and a tie goes to the even one."""
    bits = round_to_bf16(np.array([value], dtype=np.float32))
    rounded = float(widen_bf16(bits)[0])
    for neighbour in (bits + np.uint16(1), bits - np.uint16(1)):
        other = float(widen_bf16(neighbour)[0])
        if np.isfinite(other):
            assert abs(rounded - value) <= abs(other - value)
            if abs(rounded - value) == abs(other - value) and other != rounded:
                assert bits[0] % 2 == 0


def test_attention_kernel_singles_out_its_distance() -> None:
    """Over the whole context, no other distance comes near the chosen one, and no start of text is a tie."""
    kernel = build_kernel(load_geometry("tiny"))
    distances = np.arange(32768)
    for chosen in kernel.distances[:: max(1, len(kernel.distances) // 5)]:
        score = kernel.amplitude * np.cos(np.outer(distances - chosen, kernel.frequencies)) @ kernel.weights
        others = np.delete(score, chosen)
        assert score[chosen] - others.max() > GAP * 0.99
        for length in range(2, chosen + 1):
            second, best = np.sort(score[:length])[-2:]
            assert best - second >= START_GAP * 0.99
    assert max(kernel.distances) > 200
