"""Which kernels the device's time went to, and who launched them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from loop.analysis.capture import Capture
from loop.analysis.names import simplify
from loop.analysis.tables import NO_KERNELS, Advice, Table, share_pct
from loop.analysis.work import Work
from loop.record import Record

Key = tuple[str, str, str | None, str | None]


class KernelRow(Record):
    """One kernel in one kind of module, in one stage."""

    stage: str
    """prefill, decode, verify, draft, idle; between: launched for no forward pass; all: not told apart."""
    kernel: str
    """Its full name; `other`: all kernels below the smallest share, so that shares sum to 100 in each stage."""
    short_name: str
    """Without arguments, namespaces and tile sizes."""
    category: str
    """What kind of work it is (loop/analysis/categories.toml)."""
    gpu_us: float
    """The sum of its durations."""
    share_pct: float
    """Of the stage's sum of durations."""
    launches: int
    """How often it ran."""
    avg_us: float
    """Of one launch."""
    exclusive_us: float
    """While no other stream of its device was busy."""
    hidden_us: float
    """While another one was."""
    projection: str | None
    """The usual name of the weight, for the GEMMs of a model's linear layers."""
    module: str | None
    """Classes of the modules around it, inside the decoder layer."""
    python_location: str | None
    """The innermost function of the engine that did not merely pass the call on; the line is where it begins."""
    site_share_pct: float | None
    """Of the row's time, what that function launched."""
    cpu_op: str | None
    """PyTorch's operator around the launch."""
    input_dims: str | None
    """Of the operator's tensors, of the most frequent call."""
    source: str | None
    """Of the location: trace; mapping, the same place in the mapping trace; likely, the same kernel there."""


class Kernels(Table):
    """Rows by stage and share."""

    name: ClassVar[str] = "kernels"
    title: ClassVar[str] = "kernels"
    row: ClassVar[type[Record]] = KernelRow
    brief: ClassVar[tuple[str, ...]] = (
        "stage",
        "short_name",
        "projection",
        "gpu_us",
        "share_pct",
        "launches",
        "avg_us",
        "python_location",
    )

    min_share_pct: float = 1.0
    """Kernels below it are summed in the row `other`."""

    def rows(self, capture: Capture) -> tuple[KernelRow, ...]:
        """By stage, the busiest first; `other` last in each."""
        work = capture.work
        if not work.on_device:
            return ()
        groups: dict[Key, list[int]] = defaultdict(list)
        totals: dict[str, int] = defaultdict(int)
        for row, time in enumerate(work.time_ns.tolist()):
            origin = work.origin[row]
            weight = origin.weight if work.category[row] == "gemm" else None
            groups[work.stage[row], work.name[row], origin.module, weight].append(row)
            totals[work.stage[row]] += time
        found: list[KernelRow] = []
        small: dict[str, list[int]] = defaultdict(list)
        for (stage, name, _, _), rows in groups.items():
            if share_pct(float(work.time_ns[rows].sum()), totals[stage]) < self.min_share_pct:
                small[stage] += rows
            else:
                found.append(make_row(work, rows, totals[stage], name))
        found += [make_row(work, rows, totals[stage], "other") for stage, rows in small.items()]
        found.sort(key=lambda r: (-totals[r.stage], r.stage, r.kernel == "other", -r.gpu_us, r.kernel, r.module or ""))
        return tuple(found)

    def advise(self, capture: Capture, rows: Sequence[KernelRow]) -> Advice:
        """The busiest kernel of the busiest stage."""
        top = next((row for row in rows if row.kernel != "other"), rows[0])
        what = f"{top.short_name}{f' ({top.projection})' if top.projection else ''}"
        where = top.python_location or "an unknown place (give a mapping trace, taken with stacks and graphs off)"
        return Advice(
            look_first=f"{what} takes {top.share_pct:.1f} % of {top.stage}: {top.launches} launches of "
            f"{top.avg_us:.1f} µs from {where}",
            next_edit=EDITS.get(top.category, "see whether this work is needed at all, and how often it runs a step"),
        )

    def why_empty(self, capture: Capture) -> str:
        """There is no device."""
        return NO_KERNELS


EDITS = {
    "gemm": "compare its µs with the roofline of its shape (`loop analyze --roofline`): at the roof only fewer bytes "
    "help (quantized weights), below it another GEMM backend",
    "attention": "try another --attention-backend in a bundle with one flag",
    "linear_attention": "try another --linear-attn-backend in a bundle with one flag",
    "communication": "try the fused all-reduce, or fewer ranks for this model",
    "memory": "find who copies (python_location) and whether the copy can be left out",
    "norm": "see the table `fusion`: norms are fused with what stands beside them",
    "moe": "tune the MoE kernel for this shape, or try another --moe-runner-backend",
    "sampling": "check which sampling backend runs: greedy decoding needs an argmax only",
}


def make_row(work: Work, rows: list[int], stage_ns: int, name: str) -> KernelRow:
    """One row of some of the work of a stage."""
    total, hidden = int(work.time_ns[rows].sum()), int(work.hidden_ns[rows].sum())
    origins = {row: work.origin[row] for row in rows}
    sites: dict[str | None, int] = defaultdict(int)
    calls: dict[tuple[str | None, str | None], int] = defaultdict(int)
    for row, origin in origins.items():
        sites[origin.location] += int(work.time_ns[row])
        calls[origin.operator, origin.shapes] += 1
    told = name != "other"
    first = rows[0]
    location = max(sites, key=lambda s: (sites[s], s or "")) if told else None
    operator, shapes = max(calls, key=lambda c: (calls[c], c[0] or "", c[1] or "")) if told else (None, None)
    category = work.category[first] if told else "other"
    return KernelRow(
        stage=work.stage[first],
        kernel=name,
        short_name=simplify(name),
        category=category,
        gpu_us=total / 1000,
        share_pct=share_pct(total, stage_ns),
        launches=len(rows),
        avg_us=total / 1000 / len(rows),
        exclusive_us=(total - hidden) / 1000,
        hidden_us=hidden / 1000,
        projection=work.origin[first].projection if told and category == "gemm" else None,
        module=work.origin[first].module if told else None,
        python_location=location,
        site_share_pct=share_pct(sites[location], total) if told and location else None,
        cpu_op=operator,
        input_dims=shapes or None,
        source=work.source[first] if told else None,
    )
