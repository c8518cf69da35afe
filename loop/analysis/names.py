"""Long names made short: C++ kernels, Python frames, modules."""

import re
from functools import lru_cache

FRAME = re.compile(r"^(?P<path>[^(]+?\.pyx?)\((?P<line>\d+)\): (?P<function>.+)$")
MODULE = re.compile(r"^nn\.Module: (?P<kind>\w+?)(?:_\d+)?$")
INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|python)/")
DOES = re.compile(r"(\w+?)_(?:kernel_cuda|kernel_impl\w*|kernel|cuda_out)\b")
FUNCTOR = re.compile(r"(?:CUDA)?(\w*?)(?:Functor|Ops)(\w*)")
WRAPPERS = (
    "elementwise_kernel",
    "unrolled_elementwise_kernel",
    "vectorized_elementwise_kernel",
    "index_elementwise_kernel",
    "elementwise_kernel_with_index",
    "reduce_kernel",
    "multi_tensor_apply_kernel",
)
"""PyTorch's kernels that are named after how they run; what they do stands in their template arguments."""
TILE = re.compile(r"_(?:\d+x\d+(?:x\d+)*|[hv]_bz|splitK|coop[AB]|T[NT][NT]|\d+_\d+)(?=_|$)")


@lru_cache(maxsize=65536)
def simplify(kernel: str) -> str:
    """A kernel without arguments, namespaces and tile sizes: `vectorized_elementwise_kernel[add]`, `nvjet_sm90`."""
    text = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", text, maxsplit=1)[0].rpartition("::")[2].strip() or kernel
    if head in WRAPPERS and (inner := _functor(text)):
        return f"{head}[{inner}]"
    if head.startswith(("nvjet", "sm80_", "sm90_", "sm100_", "cutlass_", "ampere_")):
        return TILE.sub("", head)
    return head


def _functor(text: str) -> str:
    """What an element-wise kernel does, from its template arguments."""
    inside = text[text.find("<") :]
    named = (found[1] for found in DOES.finditer(inside) if not found[1].startswith("gpu"))
    functors = (found[1] + found[2].replace("OnSelf", "") for found in FUNCTOR.finditer(inside))
    return next(named, "") or next(functors, "").strip("_")


def shorten_frame(frame: str) -> str:
    """A Python frame without where its package is installed: the same in a wheel, a checkout and an overlay."""
    return INSTALLED.sub("", frame)


def module_kind(frame: str) -> str | None:
    """`RowParallelLinear` of the frame `nn.Module: RowParallelLinear_3`; None if it is no module."""
    found = MODULE.match(frame)
    return found["kind"] if found else None
