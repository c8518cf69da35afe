"""Which of PyTorch's operators the host ran, and what the device did for each."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.categories import categorize
from loop.analysis.nesting import find_innermost, outermost, own_time_ns
from loop.analysis.origins import Origins
from loop.analysis.tables import Advice, Table, share_pct
from loop.analysis.trace import Ints
from loop.record import Record


class OperatorRow(Record):
    """One operator."""

    operator: str
    """Its name; `other`: all below the smallest share, so that shares sum to 100."""
    category: str
    """What kind of work it is."""
    calls: int
    """How often it was called."""
    self_us: float
    """Its own time on the host, without the operators it called: on a CPU, the computing."""
    self_pct: float
    """Of all operators' own time."""
    total_us: float
    """With those it called; recursion counts once."""
    avg_us: float
    """Own time of one call."""
    device_us: float | None
    """What the kernels that it launched itself took; None on a CPU."""
    input_dims: str | None
    """Of its tensors, of the shape with most own time."""
    dims_share_pct: float | None
    """Of its own time, with that shape."""
    python_location: str | None
    """The function of the engine that called it for most of its own time."""


class Operators(Table):
    """Rows by own time."""

    name: ClassVar[str] = "operators"
    title: ClassVar[str] = "operators"
    row: ClassVar[type[Record]] = OperatorRow
    brief: ClassVar[tuple[str, ...]] = (
        "operator",
        "category",
        "calls",
        "self_us",
        "self_pct",
        "device_us",
        "input_dims",
    )

    min_share_pct: float = 0.5
    """Operators with less own time are summed in the row `other`."""

    def rows(self, capture: Capture) -> tuple[OperatorRow, ...]:
        """The largest own time first, `other` last."""
        trace, parents = capture.trace, capture.operator_parents
        spans = trace.operators
        if not len(spans):
            return ()
        own, outer = own_time_ns(spans, parents), outermost(spans, parents)
        whole = int(own.sum())
        frames = find_innermost(trace.frames, capture.frame_parents, spans.lane, spans.start_ns)
        origins = Origins(trace, capture.frame_parents)
        device = _device_us(capture)

        def told(*names: str) -> float | None:
            return None if device is None else sum(device.get(name, 0.0) for name in names)

        made: list[OperatorRow] = []
        small: list[Ints] = []
        for rows in (np.flatnonzero(spans.name == name) for name in np.unique(spans.name)):
            if share_pct(float(own[rows].sum()), whole) < self.min_share_pct:
                small.append(rows)
                continue
            shapes: Counter[str] = Counter()
            sites: Counter[str] = Counter()
            for row in rows.tolist():
                origin = origins.of(int(frames[row]), row)
                shapes[origin.shapes or ""] += int(own[row])
                sites[origin.location or ""] += int(own[row])
            name = trace.names[spans.name[rows[0]]]
            total = int(spans.duration_ns[rows][outer[rows]].sum()) / 1000
            made.append(make_row(name, own[rows], whole, total, told(name), most(shapes), most(sites)))
        made.sort(key=lambda row: (-row.self_us, row.operator))
        if small:
            rest = np.concatenate(small)
            left = told(*(trace.names[name] for name in np.unique(spans.name[rest])))
            total = int(own[rest].sum()) / 1000
            made.append(make_row("other", own[rest], whole, total, left, ("", 0), ("", 0)))
        return tuple(made)

    def advise(self, capture: Capture, rows: Sequence[OperatorRow]) -> Advice:
        """The busiest operator: computing on a CPU, dispatch on a GPU."""
        top = rows[0]
        look = f"{top.operator} takes {top.self_pct:.1f} % of operators' own time: {top.calls} of {top.avg_us:.1f} µs"
        if top.python_location:
            look += f", most from {top.python_location}"
        if capture.work.on_device:
            return Advice(
                look_first=look,
                next_edit="this is the host's cost of calling: graphs and fusion remove it, faster kernels do not",
            )
        edit = {
            "gemm": "try another dtype or CPU backend for the products (the bundle `float32` is one such try)",
            "memory": "find who copies, and whether a view would do",
        }.get(top.category, "see whether these calls can be fewer and larger")
        return Advice(look_first=look, next_edit=edit)

    def why_empty(self, capture: Capture) -> str:
        """The CPU was not profiled."""
        return 'the trace holds no operators: profile with the activity "CPU" too'


def make_row(
    operator: str,
    own_ns: Ints,
    whole_ns: int,
    total_us: float,
    device_us: float | None,
    shape: tuple[str, int],
    site: tuple[str, int],
) -> OperatorRow:
    """One row of some calls; shape and site with how much of the calls' own time they have."""
    time = int(own_ns.sum())
    return OperatorRow(
        operator=operator,
        category=categorize(operator, operator=True),
        calls=len(own_ns),
        self_us=time / 1000,
        self_pct=share_pct(time, whole_ns),
        total_us=total_us,
        avg_us=time / 1000 / len(own_ns),
        device_us=device_us,
        input_dims=shape[0] or None,
        dims_share_pct=share_pct(shape[1], time) if shape[0] else None,
        python_location=site[0] or None,
    )


def most(times: Counter[str]) -> tuple[str, int]:
    """The entry with most time; of equals the last by name."""
    return max(times.items(), key=lambda item: (item[1], item[0]))


def _device_us(capture: Capture) -> dict[str, float] | None:
    """What the kernels of each operator took; None on a CPU. Only those it launched itself."""
    work = capture.own_work
    if not work.on_device:
        return None
    found: Counter[str] = Counter()
    for row, origin in enumerate(work.origin):
        if origin.operator:
            found[origin.operator] += int(work.time_ns[row])
    return {name: found[name] / 1000 for name in capture.trace.names if name in found}
