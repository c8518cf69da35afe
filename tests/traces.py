"""Traces made by hand: events in microseconds, written as torch.profiler writes them."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from loop.analysis.capture import Capture
from loop.analysis.trace import Trace, read_trace

HOST, DEVICE = 100, 0
Event = dict[str, Any]


def event(category: str, name: str, start_us: float, dur_us: float, **more: Any) -> Event:
    """One complete event."""
    args = more.pop("args", {})
    return {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": HOST, "ts": start_us, "dur": dur_us} | {
        "args": args,
        **more,
    }


def kernel(name: str, start_us: float, dur_us: float, *, stream: int = 7, correlation: int = 0) -> Event:
    """Work of the device."""
    args = {"stream": stream, "device": 0, "correlation": correlation}
    return event("kernel", name, start_us, dur_us, pid=DEVICE, tid=stream, args=args)


def launch(start_us: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    """The host's call for a kernel."""
    return event("cuda_runtime", name, start_us, 2.0, args={"correlation": correlation})


def step(mode: str, start_us: float, dur_us: float) -> Event:
    """SGLang's span around a forward."""
    return event("user_annotation", f"step[{mode} bs=1]", start_us, dur_us)


def frame(name: str, start_us: float, dur_us: float) -> Event:
    """A Python function, or a module."""
    return event("python_function", name, start_us, dur_us)


def model_pass(
    start_us: float, layers: Sequence[Sequence[str]], *, mode: str = "DECODE", first_id: int = 1, graph: bool = False
) -> list[Event]:
    """A forward: a kernel every 10 µs, 5 µs long. Eager: each launched in its layer's module; else by one replay."""
    flat = [name for names in layers for name in names]
    events = [step(mode, start_us, 10.0 * len(flat) + 20)]
    if graph:
        events.append(launch(start_us + 1, first_id, "cudaGraphLaunch"))
    for place, name in enumerate(flat):
        at = start_us + 5 + 10 * place
        identity = first_id if graph else first_id + place
        events.append(kernel(name, at + 3, 5.0, correlation=identity))
        if not graph:
            events.append(launch(at, identity))
    if not graph:
        place = 0
        for number, names in enumerate(layers):
            at = start_us + 5 + 10 * place - 1
            events.append(frame(f"nn.Module: ToyDecoderLayer_{number}", at, 10.0 * len(names) - 2))
            events.append(frame(f"sglang/srt/models/toy.py({10 + number}): forward", at + 0.5, 10.0 * len(names) - 3))
            place += len(names)
    return events


def document(events: Sequence[Event], **head: Any) -> bytes:
    """A trace file's text."""
    return orjson.dumps({"schemaVersion": 1, **head, "traceEvents": list(events), "traceName": "x"})


def write(path: Path, events: Sequence[Event], **head: Any) -> Path:
    """A trace file, gzipped if it is named so."""
    text = document(events, **head)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def read(folder: Path, events: Sequence[Event], name: str = "toy.trace.json") -> Trace:
    """The trace of some events."""
    return read_trace(write(folder / name, events))


def capture(folder: Path, events: Sequence[Event], **more: Any) -> Capture:
    """A capture of some events."""
    return Capture(read(folder, events), **more)
