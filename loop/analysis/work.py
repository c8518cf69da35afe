"""Work: every kernel of a trace (on a CPU every operator), with its pass, its category and its origin."""

from dataclasses import dataclass, replace

import numpy as np

from loop.analysis.categories import categorize
from loop.analysis.intervals import hidden_ns
from loop.analysis.names import simplify
from loop.analysis.nesting import find_innermost, find_parents, own_time_ns
from loop.analysis.origins import NOWHERE, Origin, Origins
from loop.analysis.passes import Pass, Stage, assign_passes, stage_of_file
from loop.analysis.trace import NONE, Ints, Spans, Trace


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """One row per kernel by start; on a trace without kernels one per operator, whose time is its own."""

    on_device: bool
    name: tuple[str, ...]
    category: tuple[str, ...]
    stage: tuple[Stage, ...]
    origin: tuple[Origin, ...]
    source: tuple[str | None, ...]
    """Where the origin is from: `trace`, `mapping` (the same place in the mapping trace), `likely` (the same kernel
    there, but not as often), or None."""
    start_ns: Ints
    end_ns: Ints
    time_ns: Ints
    """What it adds to the total: of a kernel its duration."""
    hidden_ns: Ints
    """Of it, while another stream of the device was busy."""
    lane: Ints
    device: Ints
    passed: Ints
    """The forward pass it belongs to, -1 for none."""
    launch_ns: Ints
    """When the host began to launch it; -1 if the trace does not hold that."""
    launched_ns: Ints
    """When that call returned."""
    in_graph: np.ndarray
    """Whether it ran inside a replayed graph."""

    def __len__(self) -> int:
        return len(self.name)

    def rows(self, number: int) -> Ints:
        """The rows of one pass, by start."""
        return np.flatnonzero(self.passed == number)


def find_work(trace: Trace, frame_parents: Ints, operator_parents: Ints, passes: tuple[Pass, ...]) -> Work:
    """The trace's kernels, or its operators if it has none."""
    on_device = len(trace.kernels) > 0
    spans = trace.kernels if on_device else trace.operators
    order = np.lexsort((spans.correlation, spans.name, spans.lane, -spans.end_ns, spans.start_ns))
    spans = spans.pick(order)
    if on_device:
        launch = _launch_rows(trace, spans)
        operator = _innermost_operator(trace, operator_parents, spans, launch)
        lane = np.where(launch >= 0, trace.launches.lane[launch], NONE) if len(trace.launches) else launch
        called_ns = np.where(launch >= 0, trace.launches.start_ns[launch], NONE) if len(trace.launches) else launch
        returned_ns = np.where(launch >= 0, trace.launches.end_ns[launch], NONE) if len(trace.launches) else launch
        external = _shadow(trace, spans)
        replayed = {i for i, name in enumerate(trace.names) if "GraphLaunch" in name}
        in_graph = np.array([row >= 0 and int(trace.launches.name[row]) in replayed for row in launch], dtype=bool)
        time = spans.duration_ns
    else:
        operator, lane, called_ns, external = order, spans.lane, spans.start_ns, spans.external
        returned_ns = called_ns
        in_graph = np.zeros(len(spans), dtype=bool)
        time = own_time_ns(trace.operators, operator_parents)[order]
    frame = find_innermost(trace.frames, frame_parents, lane, called_ns)
    passed = assign_passes(trace, passes, called_ns, lane, external)
    origins = Origins(trace, frame_parents)
    known: dict[tuple[int, int], Origin] = {}
    origin = []
    for pair in zip(frame.tolist(), np.where(in_graph, NONE, operator).tolist(), strict=True):
        if pair not in known:
            known[pair] = origins.of(*pair)
        origin.append(known[pair])
    origin = [NOWHERE if inside else each for inside, each in zip(in_graph, origin, strict=True)]
    names = tuple(trace.names[name] for name in spans.name)
    alone = stage_of_file(trace.path.name)
    device = _device_of(trace, spans)
    return Work(
        on_device=on_device,
        name=names,
        category=tuple(categorize(n, o.location, operator=not on_device) for n, o in zip(names, origin, strict=True)),
        stage=tuple(_stage(passes, int(p), alone) for p in passed),
        origin=tuple(origin),
        source=tuple("trace" if o is not NOWHERE else None for o in origin),
        start_ns=spans.start_ns,
        end_ns=spans.end_ns,
        time_ns=time,
        hidden_ns=hidden_ns(spans.start_ns, spans.end_ns, spans.lane, device) if on_device else np.zeros_like(time),
        lane=spans.lane,
        device=device,
        passed=passed,
        launch_ns=called_ns,
        launched_ns=returned_ns,
        in_graph=in_graph,
    )


def with_origins(work: Work, origin: list[Origin], source: list[str | None]) -> Work:
    """The same work with origins found elsewhere, and the categories that follow from them."""
    category = tuple(categorize(name, o.location) for name, o in zip(work.name, origin, strict=True))
    return replace(work, origin=tuple(origin), source=tuple(source), category=category)


def label(work: Work, row: int) -> str:
    """What to call a piece of work in a sentence."""
    projection = work.origin[row].projection if work.category[row] == "gemm" else None
    return f"{simplify(work.name[row])} ({projection})" if projection else simplify(work.name[row])


def _stage(passes: tuple[Pass, ...], passed: int, alone: Stage) -> Stage:
    if passed < 0:
        return "between" if passes else alone
    return passes[passed].stage


def _launch_rows(trace: Trace, kernels: Spans) -> Ints:
    """For each kernel the call that launched it, -1 if the trace does not hold it."""
    launches = trace.launches
    order = np.argsort(launches.correlation, kind="stable")
    order = order[launches.correlation[order] >= 0]
    if not len(order):
        return np.full(len(kernels), NONE, dtype=np.int64)
    ids = launches.correlation[order]
    place = np.minimum(np.searchsorted(ids, kernels.correlation), len(ids) - 1)
    return np.where((ids[place] == kernels.correlation) & (kernels.correlation >= 0), order[place], NONE)


def _innermost_operator(trace: Trace, parents: Ints, kernels: Spans, launch: Ints) -> Ints:
    """The operator that was running when each kernel was launched; without a launch the one it names."""
    found = np.full(len(kernels), NONE, dtype=np.int64)
    have = launch >= 0
    rows = launch[have]
    found[have] = find_innermost(trace.operators, parents, trace.launches.lane[rows], trace.launches.start_ns[rows])
    by_id = {int(i): row for row, i in enumerate(trace.operators.external) if i >= 0}
    for row in np.flatnonzero((found < 0) & (kernels.external >= 0) & ~have):
        found[row] = by_id.get(int(kernels.external[row]), NONE)
    return found


def _shadow(trace: Trace, kernels: Spans) -> Ints:
    """The `External id` of the pass whose shadow on the device lies over each kernel; -1 for none."""
    shadows = trace.device_annotations.pick(
        [row for row, name in enumerate(trace.device_annotations.name) if trace.names[name].startswith("step[")]
    )
    found = np.full(len(kernels), NONE, dtype=np.int64)
    if len(shadows):
        anywhere = replace(shadows, lane=np.zeros_like(shadows.lane))
        anywhere = anywhere.pick(np.lexsort((-anywhere.end_ns, anywhere.start_ns)))
        rows = find_innermost(
            anywhere, find_parents(anywhere), np.zeros(len(kernels), dtype=np.int64), kernels.start_ns
        )
        found = np.where(rows >= 0, anywhere.external[rows], NONE)
    return found


def _device_of(trace: Trace, spans: Spans) -> Ints:
    devices = sorted({lane[0] for lane in trace.lanes})
    number = np.array([devices.index(lane[0]) for lane in trace.lanes], dtype=np.int64)
    return number[spans.lane]
