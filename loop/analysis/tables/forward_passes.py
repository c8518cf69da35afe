"""When the model ran, how long each pass took, and how much of it the device idled."""

from collections.abc import Sequence
from statistics import median
from typing import ClassVar

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.gaps import Gap, Window
from loop.analysis.tables import Advice, Table, share_pct
from loop.record import Record

COLD = 1.5
"""Times the median of its stage: what compiles, captures or allocates."""


class PassRow(Record):
    """One forward pass."""

    number: int
    """In the trace, from 0."""
    stage: str
    """prefill, decode, verify, draft or idle."""
    mode: str
    """SGLang's forward mode."""
    batch_size: int | None
    """Requests."""
    num_tokens: int | None
    """Prompt tokens of a prefill."""
    start_us: float
    """On the device, from the first event of the trace."""
    step_us: float
    """From its first kernel to the next pass's first; to its own last if the scheduler then waited."""
    busy_us: float
    """When any stream was busy."""
    idle_us: float
    """When none was."""
    idle_pct: float
    """Of the step."""
    late_us: float | None
    """Of the idle time, what passed before the host had launched the next kernel. None on a CPU."""
    host_us: float
    """How long the host was inside the forward; with graphs it leaves before the device is done."""
    num_kernels: int
    """Launched for it, its sampling and copies included."""
    num_graph_kernels: int
    """Of them, inside replayed graphs."""
    num_layers: int | None
    """None where layers cannot be told."""
    first_layer_us: float | None
    """From the first kernel of the first layer to its last."""
    median_layer_us: float | None
    """Likewise, of all its layers."""
    notes: str
    """cold: 1.5 times its stage's median or more; waited: the scheduler waited for requests before it."""


class ForwardPasses(Table):
    """Rows by start."""

    name: ClassVar[str] = "forward_passes"
    title: ClassVar[str] = "forward passes"
    row: ClassVar[type[Record]] = PassRow
    brief: ClassVar[tuple[str, ...]] = (
        "number",
        "mode",
        "batch_size",
        "step_us",
        "busy_us",
        "idle_us",
        "idle_pct",
        "num_kernels",
        "notes",
    )

    def rows(self, capture: Capture) -> tuple[PassRow, ...]:
        """One for each pass that launched something."""
        windows = [window for window in capture.windows if window.passed >= 0]
        typical: dict[str, float] = {}
        for stage in {capture.passes[w.passed].stage for w in windows}:
            typical[stage] = median(w.end_ns - w.start_ns for w in windows if capture.passes[w.passed].stage == stage)
        return tuple(make_row(capture, window, typical) for window in windows)

    def advise(self, capture: Capture, rows: Sequence[PassRow]) -> Advice:
        """Of the stage with the most passes."""
        stages = [row.stage for row in rows]
        stage = max(dict.fromkeys(stages), key=stages.count)
        chosen = [row for row in rows if row.stage == stage]
        idle = median(row.idle_pct for row in chosen)
        step = median(row.step_us for row in chosen)
        look = f"a {stage} step takes {step:.0f} µs (median of {len(chosen)}), of which the device idles {idle:.0f} %"
        if not capture.work.on_device:
            return Advice(
                look_first=f"a {stage} pass takes {step:.0f} µs, of which {idle:.0f} % between operators: Python",
                next_edit="see the table `host_functions` for what Python does there",
            )
        late = sum(row.late_us or 0 for row in chosen)
        if idle < 10:
            return Advice(look_first=look, next_edit="the device is busy: see the table `kernels`")
        if late > sum(row.idle_us for row in chosen) / 2:
            edit = "turn CUDA graphs on for this batch size (cuda-graph-max-bs-decode), or fuse what is launched"
            if any(row.num_graph_kernels for row in chosen):
                edit = "see `idle_gaps` for the host's work between graphs, and profile without stacks, which slow it"
            return Advice(look_first=f"{look}: the host launches too late", next_edit=edit)
        return Advice(look_first=look, next_edit="see the table `idle_gaps` for the kernels around the longest gaps")

    def why_empty(self, capture: Capture) -> str:
        """Nothing marks a pass."""
        return (
            "the trace marks no forward pass: SGLang 0.5.15 and later write step[...] spans, earlier versions need "
            'Python stacks; profile with the activity "CPU", and "with_stack": true'
        )


def make_row(capture: Capture, window: Window, typical: dict[str, float]) -> PassRow:
    """One pass."""
    work, each = capture.work, capture.passes[window.passed]
    rows = work.rows(window.passed)
    step = window.end_ns - window.start_ns
    walls = layer_walls_us(capture, window.passed)
    late = [late_ns(gap) for gap in capture.gaps if gap.passed == window.passed]
    cold = step >= COLD * typical[each.stage]
    waited = not each.follows_on and window.passed > 0
    return PassRow(
        number=window.passed,
        stage=each.stage,
        mode=each.mode,
        batch_size=each.batch_size,
        num_tokens=each.num_tokens,
        start_us=window.start_ns / 1000,
        step_us=step / 1000,
        busy_us=window.busy_ns / 1000,
        idle_us=(step - window.busy_ns) / 1000,
        idle_pct=share_pct(step - window.busy_ns, step),
        late_us=sum(late) / 1000 if work.on_device else None,
        host_us=(each.end_ns - each.start_ns) / 1000,
        num_kernels=len(rows),
        num_graph_kernels=int(work.in_graph[rows].sum()),
        num_layers=len(walls) or None,
        first_layer_us=walls[0] if walls else None,
        median_layer_us=median(walls) if walls else None,
        notes=", ".join(note for note, holds in (("cold", cold), ("waited", waited)) if holds),
    )


def layer_walls_us(capture: Capture, passed: int) -> list[float]:
    """How long each layer of a pass took, first kernel to last."""
    work = capture.work
    rows = work.rows(passed)
    numbers = capture.layers.number[rows]
    walls = []
    for number in np.unique(numbers[numbers >= 0]):
        mine = rows[numbers == number]
        walls.append(float(work.end_ns[mine].max() - work.start_ns[mine].min()) / 1000)
    return walls


def late_ns(gap: Gap) -> int:
    """What of a gap the host is to blame for, as far as the trace tells."""
    return gap.late_ns or 0
