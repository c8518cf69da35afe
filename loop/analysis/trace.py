"""A trace: what a profiler saw, as columns, one row per event and one set of columns per kind of event."""

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loop.analysis.chrome import Chrome, Event, Head
from loop.analysis.ranks import rank_of, same_rank
from loop.errors import InputError

Ints = NDArray[np.int64]
KINDS = {
    "kernel": "kernels",
    "gpu_memcpy": "kernels",
    "gpu_memset": "kernels",
    "cpu_op": "operators",
    "operator": "operators",
    "python_function": "frames",
    "user_annotation": "annotations",
    "gpu_user_annotation": "device_annotations",
}
RANK_IN_PID = re.compile(r"^\[([^\]]+)\] ")
"""How SGLang marks the processes of each rank in a merged trace."""
NONE = -1
NS_PER_US = 1000


@dataclass(frozen=True, eq=False, slots=True)
class Spans:
    """Events of one kind, sorted by lane, start and (longest first) end. All columns have one length."""

    name: Ints
    """Into `Trace.names`."""
    start_ns: Ints
    end_ns: Ints
    lane: Ints
    """Into `Trace.lanes`."""
    correlation: Ints
    """What ties a launch to its kernels; -1: none."""
    external: Ints
    """What ties an operator to its kernels, and an annotation to its shadow on the device; -1: none."""
    shape: Ints
    """Of an operator's inputs, into `Trace.names`; -1: none."""
    dtype: Ints
    """Likewise."""

    def __len__(self) -> int:
        return len(self.name)

    @property
    def duration_ns(self) -> Ints:
        """How long each took."""
        return self.end_ns - self.start_ns

    def pick(self, which: Any) -> "Spans":
        """The rows that a mask or an index selects."""
        return Spans(*(getattr(self, column)[which] for column in self.__slots__))


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """One rank's profile. Times count from its first event."""

    path: Path
    rank: str
    """`TP-0-EP-0`, as SGLang names its files; empty if the name does not say."""
    device: str | None
    """`NVIDIA H200`; None if only the CPU was profiled."""
    world_size: int
    num_events: int
    num_unreadable: int
    torn: str
    """What is missing at the end of the file, or nothing."""
    names: tuple[str, ...]
    lanes: tuple[tuple[str, str], ...]
    """Threads as (process, thread), streams as (device, stream)."""
    kernels: Spans
    """Kernels, copies and fills of the device."""
    launches: Spans
    """Calls into the driver or its runtime."""
    operators: Spans
    frames: Spans
    """Python functions and modules."""
    annotations: Spans
    device_annotations: Spans
    other_ranks: tuple[str, ...] = field(default=())
    """Of a merged trace: those that were left out."""

    @property
    def graphs(self) -> bool:
        """Whether graphs were replayed."""
        return any("GraphLaunch" in self.names[i] for i in np.unique(self.launches.name))


class _Columns:
    """Rows of one kind while they are collected, in machine numbers: a Python object each would cost ten times that."""

    def __init__(self) -> None:
        self.integers = tuple(array("q") for _ in range(6))
        self.times = (array("d"), array("d"))

    def spans(self, origin_us: float, order: Ints, lane_order: Ints) -> Spans:
        name, lane, *ties = (np.array(column, dtype=np.int64) for column in self.integers)
        start_us, duration_us = (np.array(column) for column in self.times)
        start = np.rint((start_us - origin_us) * NS_PER_US).astype(np.int64)
        end = start + np.rint(duration_us * NS_PER_US).astype(np.int64)
        ties = [tie if len(tie) else np.broadcast_to(np.int64(NONE), name.shape) for tie in ties]
        correlation, external, shape, dtype = ties
        shape, dtype = (np.where(column >= 0, order[column], NONE) for column in (shape, dtype))
        spans = Spans(order[name], start, end, lane_order[lane], correlation, external, shape, dtype)
        return spans.pick(np.lexsort((spans.correlation, spans.name, -end, start, spans.lane)))


def read_trace(path: Path, rank: str | None = None) -> Trace:
    """The trace in a file, gzipped or not; of a merged one the given rank, else the first.

    Raises InputError if it is no trace or holds no event. A torn file is read as far as it goes, and says so in `torn`.
    """
    chrome = Chrome(path)
    collected = _Collector(path, rank)
    try:
        for batch in chrome.batches():
            collected.add(batch)
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}", next="name an existing trace") from None
    return collected.trace(chrome)


class _Collector:
    """The columns of a trace while it is read."""

    def __init__(self, path: Path, rank: str | None) -> None:
        self.path = path
        self.wanted = rank
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[str, str], int] = {}
        self.lane_of: dict[tuple[Any, Any], int] = {}
        self.kinds = {
            kind: _Columns()
            for kind in ("kernels", "launches", "operators", "frames", "annotations", "device_annotations")
        }
        self.ranks: set[str] = set()
        self.num_events = 0
        self.kind_of: dict[str | None, str | None] = {}

    def add(self, batch: list[Event]) -> None:
        """Append the events that last."""
        self.num_events += len(batch)
        names, frames, lane_of = self.names, self.kinds["frames"], self.lane_of
        frame_names, frame_lanes = frames.integers[0].append, frames.integers[1].append
        frame_starts, frame_durations = frames.times[0].append, frames.times[1].append
        for event in batch:
            if event.ph != "X":
                continue
            if event.cat == "python_function":  # nineteen of twenty events: nothing is looked up twice
                lane = lane_of.get((event.pid, event.tid))
                if lane is None:
                    lane = self._lane(event.pid, event.tid)
                if lane >= 0:
                    frame_names(names.setdefault(event.name, len(names)))
                    frame_lanes(lane)
                    frame_starts(event.ts)
                    frame_durations(event.dur)
            else:
                self._add_other(event)

    def _add_other(self, event: Event) -> None:
        kind = self.kind_of.get(event.cat, "")
        if kind == "":
            kind = self.kind_of[event.cat] = kind_of(event.cat or "")
        if kind is None or (lane := self._lane(event.pid, event.tid)) < 0:
            return
        args = event.args
        columns = self.kinds[kind]
        shape = dtype = correlation = external = NONE
        if args is not None:
            correlation, external = integer(args.correlation), integer(args.external)
            shape, dtype = self._text(args.shapes), self._text(args.types)
            if kind == "kernels" and args.stream is not None:
                lane = self._device_lane(event, args.device, args.stream)
        values = (self.names.setdefault(event.name, len(self.names)), lane, correlation, external, shape, dtype)
        for column, value in zip(columns.integers, values, strict=True):
            column.append(value)
        columns.times[0].append(event.ts)
        columns.times[1].append(event.dur)

    def _text(self, raw: Any) -> int:
        """The id of an argument's JSON text, kept once."""
        text = bytes(raw).decode("utf-8", "replace").replace(" ", "")
        return self.names.setdefault(text, len(self.names)) if text else NONE

    def _lane(self, pid: Any, tid: Any) -> int:
        """The id of a lane, or -1 if it belongs to a rank that is not wanted."""
        known = self.lane_of.get((pid, tid))
        if known is not None:
            return known
        marked = RANK_IN_PID.match(pid) if isinstance(pid, str) else None
        if marked:
            self.ranks.add(marked[1])
            if self.wanted is None:
                self.wanted = marked[1]
            if not same_rank(marked[1], self.wanted):
                self.lane_of[pid, tid] = NONE
                return NONE
            pid_text = pid[marked.end() :]
        else:
            pid_text = str(pid)
        lane = self.lanes.setdefault((pid_text, str(tid)), len(self.lanes))
        self.lane_of[pid, tid] = lane
        return lane

    def _device_lane(self, event: Event, device: Any, stream: Any) -> int:
        pair = (f"device {device if device is not None else event.pid}", f"stream {stream}")
        return self.lanes.setdefault(pair, len(self.lanes))

    def trace(self, chrome: Chrome) -> Trace:
        """The trace, its names and lanes in an order that does not depend on the file's."""
        if not any(len(columns.times[0]) for columns in self.kinds.values()):
            raise InputError(*self._nothing_of_use())
        order, names = sort_keys(self.names)
        lane_order, lanes = sort_keys(self.lanes)
        origin_us = min(min(columns.times[0]) for columns in self.kinds.values() if columns.times[0])
        spans = {kind: columns.spans(origin_us, order, lane_order) for kind, columns in self.kinds.items()}
        rank = rank_of(self.path.name) if not self.ranks else self.wanted or ""
        return Trace(
            path=self.path,
            rank=rank,
            device=device_name(chrome.heads) if len(spans["kernels"]) else None,
            world_size=world_size(chrome.heads),
            num_events=self.num_events,
            num_unreadable=chrome.num_unreadable,
            torn=chrome.torn,
            names=names,
            lanes=lanes,
            other_ranks=tuple(sorted(other for other in self.ranks if not same_rank(other, rank))),
            **spans,
        )

    def _nothing_of_use(self) -> tuple[str, ...]:
        if self.ranks:
            return (f"{self.path} holds no rank {self.wanted}; it holds {', '.join(sorted(self.ranks))}",)
        return (f"{self.path} holds no operator, function or kernel: nothing ran while it was profiled",)


def kind_of(category: str) -> str | None:
    """The columns that an event's category belongs to; None if no table needs it."""
    lowered = category.lower()
    if lowered.endswith(("_runtime", "_driver")) or lowered == "runtime":
        return "launches"
    return KINDS.get(lowered)


def integer(value: Any) -> int:
    """An id; -1 if there is none."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return NONE


def sort_keys(ids: dict[Any, int]) -> tuple[Ints, tuple[Any, ...]]:
    """The keys in sorted order, and for each old id the new one."""
    ordered = sorted(ids)
    order = np.empty(len(ids), dtype=np.int64)
    for new, key in enumerate(ordered):
        order[ids[key]] = new
    return order, tuple(ordered)


def device_name(heads: list[Head]) -> str | None:
    """Of the first device."""
    for head in heads:
        if isinstance(head.devices, list) and head.devices and isinstance(head.devices[0], dict):
            return str(head.devices[0].get("name") or "") or None
    return None


def world_size(heads: list[Head]) -> int:
    """How many ranks there were."""
    for head in heads:
        if isinstance(head.distributed, dict):
            return max(1, integer(head.distributed.get("world_size")))
    return 1
