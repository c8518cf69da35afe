"""Synthetic checkpoints in real engines: they agree, margins dwarf bf16 noise, every part matters."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm, Qwen3_5TextRotaryEmbedding

from loop.synthetic import generate

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

torch.set_num_threads(1)  # tiny matrices: more threads only wait for each other

TOKENS = 48
TEXTS = (
    "Hello",
    "The quick brown fox jumps over the lazy dog.",
    "\u4f60\u597d\uff0c\u4e16\u754c \U0001f642",
    "def add(a, b):\n    return a + b\n" * 30,
)
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": 1600, "hidden_size": 128,
    "intermediate_size": 640, "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 256, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "mtp_num_hidden_layers": 1,
    "eos_token_id": 258, "pad_token_id": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return generate(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def hybrid(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3.5: gated delta net, gated attention, tied embeddings, draft layer."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "config.json").write_text(json.dumps(HYBRID))
    return generate(folder / "hybrid", geometry=folder / "config.json", tokenizer=tiny)


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real SGLang on the tiny checkpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "server.log"
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(tiny), "--port", str(port)]
    command += ["--sleep-on-idle"]  # transformers works beside it on the same two cores
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)
    try:
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if is_ready(f"http://127.0.0.1:{port}"):
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"no server: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_ready(url: str) -> bool:
    """The server answers and has done its warm-up request."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def post(url: str, body: dict[str, Any]) -> Any:
    """The JSON answer to `body`."""
    reply = httpx.post(url, json=body, timeout=120).raise_for_status()
    return reply.json() if reply.text.startswith("{") else reply.text


def load(path: Path, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The checkpoint in transformers."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def collect_prompts(path: Path) -> list[list[int]]:
    """Texts, a chat, and random ids of any kind up to 2000 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts: list[list[int]] = [tokenizer(text)["input_ids"] for text in TEXTS]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about a kettle."}]
    prompts.append(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    generator = torch.Generator().manual_seed(1)
    prompts += [torch.randint(0, 1600, (length,), generator=generator).tolist() for length in (3, 200, 2000)]
    return prompts


@torch.no_grad()
def answer(model: Any, prompt: list[int], tokens: int = TOKENS) -> list[int]:
    """Greedy continuation."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=256,
    )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@torch.no_grad()
def measure_margins(path: Path) -> dict[str, float]:
    """Gaps of the best two logits in float32, and how far bf16 moves them, over every position of every prompt."""
    rough, exact = load(path), load(path, torch.float32)
    gaps, moved, noise = [], [], []
    for prompt in collect_prompts(path):
        ids = torch.tensor([prompt + answer(rough, prompt)])
        fine, coarse = exact(ids).logits[0], rough(ids).logits[0].float()
        best = fine.topk(2, -1)
        delta = coarse - fine
        gaps.append(best.values[:, 0] - best.values[:, 1])
        picked = delta.gather(-1, best.indices)
        moved.append((picked[:, 0] - picked[:, 1]).abs())
        noise.append((delta - delta.median(-1, keepdim=True).values).abs().max(-1).values)
    gap, shift, worst = torch.cat(gaps), torch.cat(moved), torch.cat(noise)
    return {
        "positions": float(len(gap)), "gap_min": gap.min().item(), "gap_median": gap.median().item(),
        "gap_moved_max": shift.max().item(), "gap_moved_median": shift.median().item(),
        "logit_noise_max": worst.max().item(), "logit_noise_median": worst.median().item(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["tiny", "hybrid"])
def test_margins_dwarf_bf16_noise(kind: str, request: pytest.FixtureRequest) -> None:
    """At every position, prompts included, the best token leads by 20 times what bf16 can change."""
    margins = measure_margins(request.getfixturevalue(kind))
    print(kind, {key: round(value, 3) for key, value in margins.items()})
    assert margins["gap_min"] > 7.0
    assert margins["gap_min"] > 20 * margins["gap_moved_max"]
    assert margins["gap_median"] > 20 * margins["logit_noise_median"]


def test_sglang_answers_as_transformers_does(server: str, tiny: Path) -> None:
    """Token by token, for short, long, CJK, chat and random prompts."""
    model = load(tiny)
    for prompt in collect_prompts(tiny):
        sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        reply = post(f"{server}/generate", {"input_ids": prompt, "sampling_params": sampling})
        assert reply["output_ids"] == answer(model, prompt)


def test_text_endpoints_give_readable_words(server: str, tiny: Path) -> None:
    """Text in is tokenized as transformers does it; text out is plain words, in chat completions too."""
    body = {"text": TEXTS[1], "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0}}
    text = post(f"{server}/generate", body)["text"]
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert text == tokenizer.decode(answer(load(tiny), tokenizer(TEXTS[1])["input_ids"]))
    assert len(text.split()) == TOKENS
    assert all(word.isalpha() and word.isascii() for word in text.split())
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    choice = post(f"{server}/v1/chat/completions", chat)["choices"][0]
    assert len(choice["message"]["content"].split()) == 8


@pytest.mark.parametrize("kind", ["tiny", "hybrid"])
def test_prompts_do_not_share_a_continuation(kind: str, request: pytest.FixtureRequest) -> None:
    """Every prompt gives another text, and none falls into a short cycle."""
    path = request.getfixturevalue(kind)
    model = load(path)
    answers = [answer(model, prompt, 200) for prompt in collect_prompts(path)]
    assert len({tuple(ids[:16]) for ids in answers}) == len(answers)
    for ids in answers:
        assert len({tuple(ids[i : i + 4]) for i in range(len(ids) - 3)}) > 150


@pytest.mark.parametrize("kind", ["tiny", "hybrid"])
def test_an_early_token_changes_the_continuation(kind: str, request: pytest.FixtureRequest) -> None:
    """Most single changes somewhere in a prompt of 60 tokens show within 48 tokens."""
    model = load(request.getfixturevalue(kind))
    prompt = torch.randint(300, 1500, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    reference = answer(model, prompt)
    changed = 0
    for place in range(0, 60, 5):
        other = list(prompt)
        other[place] += 17
        changed += answer(model, other) != reference
    assert changed >= 6


@pytest.mark.parametrize("kind", ["tiny", "hybrid"])
def test_a_fault_in_any_layer_changes_outputs(kind: str, request: pytest.FixtureRequest) -> None:
    """Zeroing one matrix of one layer, whichever it is, changes what is generated."""
    path = request.getfixturevalue(kind)
    model = load(path)
    prompts = collect_prompts(path)[:5]
    reference = [answer(model, prompt) for prompt in prompts]
    for index, layer in enumerate(model.model.layers):
        if hasattr(layer, "linear_attn"):
            mixer = layer.linear_attn
            matrices = [mixer.in_proj_qkv, mixer.in_proj_z, mixer.in_proj_b, mixer.conv1d, mixer.norm, mixer.out_proj]
        else:
            mixer = layer.self_attn
            matrices = [mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj]
        mlp = layer.mlp
        norms = [layer.input_layernorm, layer.post_attention_layernorm] if kind == "tiny" else []
        for module in [*matrices, mlp.gate_proj, mlp.up_proj, mlp.down_proj, *norms]:
            kept = module.weight.data.clone()
            module.weight.data.zero_()
            same = all(answer(model, p) == r for p, r in zip(prompts, reference, strict=True))
            module.weight.data.copy_(kept)
            assert not same, f"layer {index}: {type(module).__name__} {tuple(kept.shape)} does not matter"


@torch.no_grad()
def continue_after(model: Any, prompt: list[int], spoil: Any) -> list[int]:
    """Greedy tokens after a prefill whose cache `spoil` may change."""
    out = model(torch.tensor([prompt]), use_cache=True)
    spoil(out.past_key_values)
    ids: list[int] = []
    for _ in range(TOKENS):
        ids.append(int(out.logits[0, -1].argmax()))
        out = model(torch.tensor([ids[-1:]]), past_key_values=out.past_key_values, use_cache=True)
    return ids


def test_far_cache_entries_matter(tiny: Path) -> None:
    """A prefix cache that returned wrong values 150 tokens back would be noticed."""
    model = load(tiny)
    prompt = torch.randint(300, 1500, (400,), generator=torch.Generator().manual_seed(9)).tolist()

    def spoil(cache: Any) -> None:
        for layer in cache.layers:
            layer.values[:, :, :250] = 0

    assert continue_after(model, prompt, spoil) != continue_after(model, prompt, lambda _: None)


def test_recurrent_state_matters(hybrid: Path) -> None:
    """Losing the gated delta net's state of any one layer changes the continuation."""
    model = load(hybrid)
    prompts = [torch.randint(300, 1500, (300,), generator=torch.Generator().manual_seed(s)).tolist() for s in range(4)]
    reference = [continue_after(model, prompt, lambda _: None) for prompt in prompts]
    for index, layer in enumerate(model.model.layers):
        if not hasattr(layer, "linear_attn"):
            continue

        def spoil(cache: Any, index: int = index) -> None:
            for state in cache.layers[index].recurrent_states.values():
                state.zero_()

        assert [continue_after(model, prompt, spoil) for prompt in prompts] != reference, f"layer {index}"


@torch.no_grad()
def test_draft_layer_is_often_right(hybrid: Path) -> None:
    """The MTP layer, run as SGLang runs it, names the token after next often enough to measure speculation."""
    model = load(hybrid)
    config = model.config
    weights = {
        name[4:]: tensor for name, tensor in load_file(hybrid / "model.safetensors").items() if name.startswith("mtp.")
    }
    attention = config.layer_types.index("full_attention")
    layer = Qwen3_5DecoderLayer(config, attention).to(torch.bfloat16)
    layer.load_state_dict({name[9:]: tensor for name, tensor in weights.items() if name.startswith("layers.0.")})
    norms = {
        name: Qwen3_5RMSNorm(config.hidden_size, config.rms_norm_eps)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    }
    for name, norm in norms.items():
        norm.weight.data = weights[f"{name}.weight"]
    prompt = collect_prompts(hybrid)[4]
    ids = torch.tensor([prompt + answer(model, prompt, 200)])
    hidden = model.model(ids).last_hidden_state[:, :-1]
    embedded = norms["pre_fc_norm_embedding"](model.model.embed_tokens(ids[:, 1:]))
    mixed = torch.cat([embedded, norms["pre_fc_norm_hidden"](hidden)], -1) @ weights["fc.weight"].T
    positions = torch.arange(mixed.shape[1])[None]
    rotary = Qwen3_5TextRotaryEmbedding(config)(mixed, positions)
    mask = torch.full((1, 1, mixed.shape[1], mixed.shape[1]), float("-inf"), dtype=torch.bfloat16).triu(1)
    drafted = model.lm_head(norms["norm"](layer(mixed, rotary, attention_mask=mask))).argmax(-1)[0, :-1]
    accepted = (drafted == ids[0, 2:])[len(prompt) :].float().mean().item()
    print("accepted", accepted)
    assert accepted > 0.4
