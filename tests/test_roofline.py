"""The roofline: operations and bytes by hand, weights against real checkpoints, every kernel to one operator."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.analysis.roofline import Measured, draw_roofline, draw_speculation, merge
from loop.analysis.roofline_kernels import match_kernels
from loop.analysis.roofline_operators import Batch, Forward, Operator, Precision
from loop.analysis.tables.kernels import KernelRow
from loop.devices import Peaks, find_peaks
from loop.dimensions import Dimensions
from loop.errors import InputError
from loop.synthetic import generate
from loop.weights import read_weights
from loop.workspace import DeviceSettings
from tests.test_capacity import DENSE, QWEN

ONE = Precision()
MOE = {
    **DENSE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32, "mlp_only_layers": [0],
}  # fmt: skip
LATENT = {
    **DENSE, "model_type": "deepseek_v3", "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
HYBRID = {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_5_text", "vocab_size": 1600, "hidden_size": 128, "intermediate_size": 640,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "full_attention_interval": 4, "attn_output_gate": True,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip


def operators(config: dict[str, Any], **batch: Any) -> dict[str, Operator]:
    """Name → operator of a pass; those that the traces call alike are one."""
    return {one.name: one for one in merge(Forward(Dimensions.of(config), Batch(**batch), ONE).operators())}


@pytest.fixture(scope="module")
def h200() -> Peaks:
    """From the table that ships."""
    found = find_peaks("NVIDIA H200", DeviceSettings())
    assert found is not None
    return found


def test_a_linear_layer_by_hand() -> None:
    """Llama's first: 8 tokens through 1024 x 6144 in ten layers, two bytes each."""
    found = operators(DENSE, num_requests=8)["gate_up_proj"]

    assert 10 * 2 * 8 * 1024 * 6144 == found.flops
    assert 10 * 2 * (1024 * 6144 + 8 * 1024 + 8 * 6144) == found.num_bytes


def test_attention_in_decode_reads_the_context() -> None:
    """Two requests behind 100 tokens see 101 each: keys and values of 2 heads of 128 are read, and the new written."""
    found = operators(DENSE, num_requests=2, num_context_tokens=100)["attention"]

    assert 10 * 2 * 101 * 8 * 128 * 4 == found.flops
    assert 10 * 2 * (2 * (101 + 1) * 2 * 2 * 128 + 2 * 8 * 128 * 2) == found.num_bytes


def test_attention_in_prefill_is_a_triangle() -> None:
    """Token i of a prompt sees i others: 1 + 2 + ... + 64 pairs."""
    found = operators(DENSE, num_requests=1, num_query_tokens=64)["attention"]

    assert 10 * 4 * 8 * 128 * sum(range(1, 65)) == found.flops


@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 60), st.integers(1, 50))
def test_pairs_are_counted_as_a_loop_counts_them(requests: int, query: int, context: int, window: int) -> None:
    """With a window and without one."""
    batch = Batch(num_requests=requests, num_query_tokens=query, num_context_tokens=context)
    seen = [context + i + 1 for i in range(query)]

    assert requests * sum(seen) == batch.num_pairs()
    assert requests * sum(min(window, each) for each in seen) == batch.num_pairs(window)


def test_a_delta_net_reads_and_writes_its_state() -> None:
    """24 layers of 32 heads of 128 x 128 in float32; the convolution remembers three columns of 8192 channels."""
    found = operators(QWEN, num_requests=1)["linear_attention"]
    state, conv, kernel = 32 * 128 * 128, 3 * 8192, 4 * 8192

    assert 24 * (7 * state + 2 * kernel) == found.flops
    assert 24 * (2 * (4 * state + 2 * conv) + 2 * (3 * 8192 + 4096) + 2 * kernel) == found.num_bytes


def test_of_experts_those_are_read_that_some_token_needs() -> None:
    """One token needs two of eight; very many need them all. The first layer is dense, and each has a shared expert."""
    few, many = operators(MOE, num_requests=1)["moe"], operators(MOE, num_requests=1000)["moe"]
    weights = 9 * 3 * 1024 * 64

    assert 2 * 2 * weights == few.flops
    assert pytest.approx(2 * 2 * weights, rel=0.1) == few.num_bytes
    assert 2 * 8 * weights < many.num_bytes
    assert 8 * weights == many.num_weights
    assert {"gate", "gate_up_proj"} <= operators(MOE, num_requests=1).keys()


def test_latent_attention_keeps_one_short_row_per_token() -> None:
    """32 + 8 elements for all heads."""
    found = operators(LATENT, num_requests=1, num_context_tokens=99)["attention"]

    assert 10 * 2 * ((100 + 1) * 40 + 8 * (40 + 32)) == found.num_bytes
    assert 10 * 40 * 2 == Dimensions.of(LATENT).kv_bytes(2.0, num_shards=8)


def test_the_head_is_asked_about_the_last_token_only() -> None:
    """But about every drafted one in verification."""
    prefill = operators(DENSE, num_requests=2, num_query_tokens=50)["lm_head"]
    verify = operators(DENSE, num_requests=2, num_query_tokens=5, samples_all=True)["lm_head"]

    assert (2 * 2 * 1024 * 1000, 2 * 10 * 1024 * 1000) == (prefill.flops, verify.flops)


@pytest.mark.parametrize("config", [None, HYBRID], ids=["qwen3", "qwen3.5 with a draft layer"])
def test_weights_are_as_many_as_a_real_checkpoint_has(tmp_path: Path, config: dict[str, Any] | None) -> None:
    """Counted from the headers of its files; the pass itself counts all but the draft's."""
    source: Any = "tiny"
    if config is not None:
        source = tmp_path / "config.json"
        source.write_text(json.dumps(config))
    model = generate(tmp_path / "model", geometry=source)
    weights, found = read_weights(model), Dimensions.read(model)

    assert weights is not None
    assert weights.num_params == found.num_params
    drafts = found.model_copy(update={"num_draft_layers": 0})
    assert drafts.num_params == sum(one.num_weights for one in Forward(found, Batch(num_requests=1), ONE).operators())


@pytest.mark.parametrize("config", [DENSE, MOE, QWEN])
def test_two_counts_of_the_weights_agree(config: dict[str, Any]) -> None:
    """By layer and by operator."""
    found = Dimensions.of(config).model_copy(update={"num_draft_layers": 0})

    assert found.num_params == sum(one.num_weights for one in Forward(found, Batch(num_requests=1), ONE).operators())


def test_decode_of_four_billion_weights_on_an_h200(h200: Peaks) -> None:
    """8.4 GB of weights at 4.8 TB/s are 1.75 ms; measured were 3.23 ms at batch 1 and 3.62 ms at batch 8."""
    found = Dimensions.of(QWEN)
    one, eight = (
        draw_roofline(found, Batch(num_requests=b, num_context_tokens=300), "NVIDIA H200", h200, pass_us=us)
        for b, us in ((1, 3230.0), (8, 3620.0))
    )

    assert 1752 < (one.roof_us or 0) < 1800
    assert 54 < (one.mbu_pct or 0) < 56
    assert 1900 < (eight.roof_us or 0) < 2000
    assert 53 < (eight.mbu_pct or 0) < 56
    assert {"memory"} == {row.bound for row in one.rows}


def test_a_long_prompt_is_ruled_by_arithmetic(h200: Peaks) -> None:
    """2048 tokens: every product of matrices, while norms still move bytes."""
    drawn = draw_roofline(Dimensions.of(QWEN), Batch(num_requests=1, num_query_tokens=2048), "x", h200)
    bounds = {row.operator: row.bound for row in drawn.rows}

    assert ("compute", "compute", "memory") == (bounds["gate_up_proj"], bounds["in_proj_qkvz"], bounds["norm"])


def test_a_device_that_nobody_knows_has_no_roof() -> None:
    """Missing is null: operations and bytes are still there."""
    drawn = draw_roofline(Dimensions.of(DENSE), Batch(num_requests=1), "cpu", Peaks(source="nobody"), pass_us=100.0)

    assert (None, None, None) == (drawn.roof_us, drawn.mfu_pct, drawn.mbu_pct)
    assert all(row.gflop is not None and row.bound is None for row in drawn.rows)


def test_gpus_share_the_work(h200: Peaks) -> None:
    """Two of them have half of everything each."""
    one, two = (
        draw_roofline(Dimensions.of(DENSE), Batch(num_requests=1), "x", h200, num_gpus=count) for count in (1, 2)
    )

    assert pytest.approx(2.0) == (one.roof_us or 0) / (two.roof_us or 1)


def test_measured_time_finds_its_operator(h200: Peaks) -> None:
    """Headroom, utilization and what rules it; kernels of nothing known keep their time in `other`."""
    measured = {
        "gate_up_proj": Measured(us=100.0, num_launches=10),
        "norm": Measured(us=50.0, num_launches=21),
        "other": Measured(us=10.0, num_launches=5),
    }
    drawn = draw_roofline(Dimensions.of(DENSE), Batch(num_requests=1), "x", h200, measured=measured)
    rows = {row.operator: row for row in drawn.rows}

    assert 160.0 == drawn.busy_us
    assert pytest.approx(100.0) == sum(row.share_pct or 0 for row in drawn.rows)
    assert pytest.approx(100.0 - 10 * 2 * (1024 * 6144 + 7168) / 4.8e6) == rows["gate_up_proj"].headroom_us
    assert ("memory", "launch", None) == (rows["gate_up_proj"].bound, rows["norm"].bound, rows["other"].bound)
    assert (None, 10.0) == (rows["other"].roof_us, rows["other"].measured_us)


def kernel(category: str, *, us: float = 1.0, hidden_us: float = 0.0, **fields: Any) -> KernelRow:
    """A row of the kernel table."""
    defaults = {
        "stage": "decode", "kernel": category, "short_name": category, "share_pct": 1.0, "launches": 2, "avg_us": 1.0,
        "projection": None, "module": None, "python_location": None, "site_share_pct": None, "cpu_op": None,
        "input_dims": None, "source": None,
    }  # fmt: skip
    return KernelRow.model_validate(
        {
            **defaults, "category": category, "gpu_us": us, "exclusive_us": us - hidden_us, "hidden_us": hidden_us,
            **fields,
        }
    )  # fmt: skip


def test_kernels_find_their_operator_by_projection_and_shape() -> None:
    """Both input projections of a delta net are called alike; one without a name has the only shape of its kind."""
    known = list(operators(QWEN, num_requests=1).values())
    rows = [
        kernel("gemm", projection="in_proj", input_dims="1x2560, 2560x12288"),
        kernel("gemm", us=2.0, projection="in_proj", input_dims="1x2560, 2560x64"),
        kernel("gemm", us=3.0, input_dims="1x2560, 2560x248320"),
        kernel("gemm", us=4.0, input_dims="1x2560, 2560x7"),
        kernel("attention", us=5.0),
        kernel("memory", us=6.0, kernel="store_kvcache<256>"),
        kernel("memory", us=7.0, kernel="Memcpy HtoD"),
    ]
    found = {name: one.us for name, one in match_kernels(rows, known, 1).items()}

    assert {"in_proj_qkvz": 1, "in_proj_ba": 2, "lm_head": 3, "attention": 11, "other": 11} == found


def test_a_kernel_hidden_behind_another_wins_nothing_by_being_faster(h200: Peaks) -> None:
    """Two streams: the device was busy for 100 µs, not for 150; the short kernel ran beside the long one."""
    rows = [kernel("attention", us=100.0, hidden_us=50.0), kernel("norm", us=50.0, hidden_us=50.0)]
    found = match_kernels(rows, list(operators(QWEN, num_requests=1).values()), 1)
    drawn = draw_roofline(Dimensions.of(QWEN), Batch(num_requests=1), "x", h200, measured=found)
    headroom = {row.operator: row.headroom_us for row in drawn.rows}

    assert 100.0 == drawn.busy_us
    assert (50.0, 0.0) == (headroom["attention"], headroom["norm"])


@given(
    st.lists(
        st.tuples(st.sampled_from(["gemm", "norm", "attention", "moe", "x"]), st.floats(0, 1e3), st.integers(1, 9999)),
        max_size=30,
    )
)
def test_no_kernel_is_lost_or_counted_twice(kernels: list[tuple[str, float, int]]) -> None:
    """Whatever they are."""
    rows = [kernel(category, us=us, input_dims=f"1x2560, 2560x{columns}") for category, us, columns in kernels]
    found = match_kernels(rows, list(operators(QWEN, num_requests=1).values()), 1)

    assert pytest.approx(sum(row.gpu_us for row in rows)) == sum(one.us for one in found.values())
    assert 2 * len(rows) == sum(one.num_launches for one in found.values())


def test_a_draft_pays_where_enough_of_it_is_accepted(h200: Peaks) -> None:
    """At batch 1 verifying costs as much as decoding: the drafts alone must be earned back."""
    found = draw_speculation(Dimensions.of(QWEN), Batch(num_requests=1, num_context_tokens=300), h200)

    assert [1, 2, 3, 4] == [row.num_draft_tokens for row in found]
    assert all(1 < row.break_even_accept_length < row.num_draft_tokens + 1 for row in found)
    assert pytest.approx((found[0].verify_us + found[0].draft_us) / found[0].break_even_accept_length) == (
        draw_roofline(Dimensions.of(QWEN), Batch(num_requests=1, num_context_tokens=300), "x", h200).roof_us
    )
    assert () == draw_speculation(Dimensions.of(DENSE), Batch(num_requests=1), h200)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "is not JSON"), ("[]", "does not hold"), ("{}", "num_attention_heads"), (None, "cannot be read")],
)
def test_what_is_no_models_config_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    """With what is wrong in it."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(InputError, match=said):
        Dimensions.read(tmp_path)
