"""Names made short, and what they say about the work."""

import pytest

from loop.analysis.categories import categorize
from loop.analysis.names import shorten_frame, simplify
from loop.analysis.origins import compact, is_layer

COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
ADD = "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctorOnSelf_add<long>, std::array<x> >(int)"
ACT = (
    "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, ((anonymous namespace)::ActivationKind)0, true>(int)"
)
INDEX = (
    "void at::native::index_elementwise_kernel<128, 4, "
    "at::native::gpu_index_kernel<at::native::index_put_kernel_impl<x>>>(y)"
)
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, int> >(z)"


@pytest.mark.parametrize(
    ("kernel", "short", "category"),
    [
        (COPY, "unrolled_elementwise_kernel[direct_copy]", "memory"),
        (ADD, "vectorized_elementwise_kernel[add]", "elementwise"),
        (INDEX, "index_elementwise_kernel[index_put]", "elementwise"),
        (ACT, "act_and_mul_kernel", "activation"),
        ("nvjet_sm90_tst_128x8_64x12_4x1_v_bz_splitK_TNT", "nvjet_sm90_tst", "gemm"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(x)", "FusedAddRMSNormKernel", "norm"),
        ("fused_recurrent_gated_delta_rule_packed_decode_kernel", None, "linear_attention"),
        ("_causal_conv1d_update_kernel", None, "linear_attention"),
        ("_fwd_kernel", None, "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH", "memory"),
        ("moe_align_block_size_kernel", None, "moe"),
        ("per_token_group_quant_8bit_kernel", None, "quantize"),
        ("something_new", None, "other"),
    ],
)
def test_a_kernel_has_a_short_name_and_a_category(kernel: str, short: str | None, category: str) -> None:
    """From its name alone."""
    assert (short or kernel) == simplify(kernel)
    assert category == categorize(kernel)


def test_an_argmax_is_sampling() -> None:
    """And not a reduction like any other."""
    assert "sampling" == categorize(ARGMAX)


def test_a_place_decides_where_a_name_says_nothing() -> None:
    """Triton kernels are often called `_fwd`."""
    assert "linear_attention" == categorize("kernel_12", "sglang/srt/layers/attention/fla/chunk.py(1): f")
    assert "moe" == categorize("kernel_12", "sglang/srt/layers/moe/x.py(1): f")


def test_a_frame_is_the_same_wherever_its_package_is_installed() -> None:
    """So that a wheel, a checkout and an overlay can be compared."""
    for prefix in ("", "/usr/lib/python3.12/site-packages/", "/src/sglang/python/"):
        assert "sglang/srt/models/x.py(3): f" == shorten_frame(f"{prefix}sglang/srt/models/x.py(3): f")


@pytest.mark.parametrize(
    "kind", ["Qwen3_5LinearDecoderLayer", "LlamaDecoderLayer", "TransformerBlock", "DeepseekV2DecoderLayer"]
)
def test_decoder_layers_are_layers(kind: str) -> None:
    """By their classes' names."""
    assert is_layer(kind)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "ColumnParallelLinear", "LayerCommunicator", "MLP"])
def test_parts_of_layers_are_not(kind: str) -> None:
    """Nor is what has the word in its name."""
    assert not is_layer(kind)


def test_shapes_are_short() -> None:
    """Scalars are left out."""
    assert "1x2560, 2560x64" == compact("[[1,2560],[2560,64],[]]")
