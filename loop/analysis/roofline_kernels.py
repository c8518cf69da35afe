"""Kernels to operators: which of a pass's operators each row of the kernel table belongs to."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from loop.analysis.capture import Capture
from loop.analysis.roofline import Measured
from loop.analysis.roofline_operators import Operator
from loop.analysis.tables.kernels import KernelRow, Kernels

OTHER = "other"
STORES_KV = re.compile(r"store_?kv|store_?cache|reshape_and_cache", re.IGNORECASE)
"""Writing the cache is part of attention, whose bytes count it."""


def measure_operators(capture: Capture, stage: str, operators: Sequence[Operator]) -> dict[str, Measured]:
    """Operator → its kernels in one pass of `stage`, on average; `other`: kernels of none.

    Empty if the trace has no pass of that stage.
    """
    num_passes = sum(one.stage == stage for one in capture.passes)
    rows = [row for row in Kernels(min_share_pct=0.0).rows(capture) if row.stage == stage]
    if not rows:
        return {}
    return match_kernels(rows, operators, num_passes or 1)


def match_kernels(rows: Iterable[KernelRow], operators: Sequence[Operator], num_passes: int) -> dict[str, Measured]:
    """Each row to exactly one operator or to `other`."""
    spent: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    launches: dict[str, float] = defaultdict(float)
    for row in rows:
        name = find_operator(row, operators) or OTHER
        spent[name] += row.gpu_us / num_passes
        hidden[name] += row.hidden_us / num_passes
        launches[name] += row.launches / num_passes
    return {name: Measured(spent[name], launches[name], hidden[name]) for name in spent}


def find_operator(row: KernelRow, operators: Sequence[Operator]) -> str | None:
    """By the projection and the number of its outputs, else by the category."""
    if row.category == "gemm":
        return _find_linear(row, [operator for operator in operators if operator.out_features is not None])
    name = "attention" if STORES_KV.search(row.kernel) else row.category
    names = {operator.name for operator in operators}
    return name if name in names else None


def _find_linear(row: KernelRow, linears: Sequence[Operator]) -> str | None:
    """Of those with its outputs the one with its name, or that begins with it; the only one if it has no name."""
    outputs = _num_outputs(row.input_dims)
    if row.projection is not None:
        named = [linear for linear in linears if linear.name.startswith(row.projection)]
        fitting = [linear for linear in named if outputs is None or linear.out_features == outputs]
        return (fitting or named)[0].name if named else None
    fitting = [linear for linear in linears if outputs is not None and linear.out_features == outputs]
    return fitting[0].name if len({linear.name for linear in fitting}) == 1 else None


def _num_outputs(input_dims: str | None) -> int | None:
    """Columns of a matrix product's second operand: `1x2560, 2560x64` → 64."""
    shapes = (input_dims or "").split(", ")
    last = shapes[1].rpartition("x")[2] if len(shapes) > 1 else ""
    return int(last) if last.isdigit() else None
