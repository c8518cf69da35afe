"""Cuts a real trace down to what a test needs: some forward passes, and of the host only what led to a launch.

    python -m tests.excerpt SOURCE.trace.json.gz TARGET.trace.json.gz --passes 4 5

Kept are the passes' spans, kernels, their launches, and the operators and Python frames around launches (of frames only
the engine's and modules), each with the arguments that the tables read. Times count from the first event kept.
"""

import argparse
import gzip
from pathlib import Path
from typing import Any

import orjson

ARGUMENTS = ("External id", "correlation", "device", "stream", "Input Dims", "Input type")
HOST = ("cpu_op", "python_function")


def excerpt(document: dict[str, Any], passes: list[int]) -> dict[str, Any]:
    """The document with the passes of these numbers only, by start."""
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    spans = sorted((e for e in events if is_pass(e)), key=lambda e: e["ts"])
    windows = [around(span, events) for span in spans]
    windows = [windows[number] for number in passes]
    launches = [e for e in events if e["cat"].endswith(("_runtime", "_driver")) and inside(e, windows)]
    ids = {e["args"]["correlation"] for e in launches}
    kernels = [
        e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") if e["args"]["correlation"] in ids
    ]
    ran = {e["args"]["correlation"] for e in kernels}
    launches = [e for e in launches if e["args"]["correlation"] in ran]
    calls = sorted((e["tid"], e["ts"]) for e in launches)
    host = [e for e in events if e["cat"] in HOST and told(e) and any_call(e, calls)]
    spans = [e for e in events if e["cat"] == "user_annotation" and inside(e, windows)]
    kept = sorted([*spans, *host, *launches, *kernels], key=lambda e: e["ts"])
    first = kept[0]["ts"]
    head = {key: document[key] for key in ("schemaVersion", "deviceProperties", "distributedInfo")}
    return {**head, "traceEvents": [lean(event, first) for event in kept]}


def is_pass(event: dict[str, Any]) -> bool:
    """Whether SGLang wrote it around a forward."""
    return event["cat"] == "user_annotation" and event["name"].startswith("step[")


def around(span: dict[str, Any], events: list[dict[str, Any]]) -> tuple[float, float]:
    """The scheduler's round that a pass is in."""
    for event in events:
        if event["cat"] == "user_annotation" and event["name"].endswith("run_batch"):
            first, last = event["ts"], event["ts"] + event["dur"]
            if first <= span["ts"] <= last:
                return first, last
    return span["ts"], span["ts"] + span["dur"]


def inside(event: dict[str, Any], windows: list[tuple[float, float]]) -> bool:
    """Whether it began in one of the windows."""
    return any(first <= event["ts"] <= last for first, last in windows)


def told(event: dict[str, Any]) -> bool:
    """Whether the tables look at it."""
    name = event["name"]
    return event["cat"] == "cpu_op" or (name.startswith(("nn.Module", "sglang/")) and "utils/" not in name)


def any_call(event: dict[str, Any], calls: list[tuple[Any, float]]) -> bool:
    """Whether a launch happened in it."""
    first, last = event["ts"], event["ts"] + event["dur"]
    return any(tid == event["tid"] and first <= at <= last for tid, at in calls)


def lean(event: dict[str, Any], first: float) -> dict[str, Any]:
    """An event with the arguments that are read."""
    kept = {name: event["args"][name] for name in ARGUMENTS if name in event.get("args", {})}
    times = {"ts": round(event["ts"] - first, 3), "dur": event["dur"]}
    return {"ph": "X", **{key: event[key] for key in ("cat", "name", "pid", "tid")}, **times, "args": kept}


def main() -> None:
    """Write the excerpt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--passes", type=int, nargs="+", required=True)
    asked = parser.parse_args()
    document = excerpt(orjson.loads(gzip.decompress(asked.source.read_bytes())), asked.passes)
    asked.target.write_bytes(gzip.compress(orjson.dumps(document), mtime=0))
    print(f"{asked.target}: {len(document['traceEvents'])} events, {asked.target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
