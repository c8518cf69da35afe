"""How fast traces are read: seconds and peak memory of all tables, and how both grow with the number of events.

`python -m tests.perf.trace_speed TRACE...` reads each trace as it is, and four and sixteen times as long (its own
events again, at later times), each in a process of its own, and prints a table. CPU seconds are told beside wall
seconds, because a machine that does something else meanwhile stretches the latter. The page is `docs/evidence.md`.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

TIMES = (1, 4, 16)
IDENTITIES = ("External id", "correlation", "Python id", "Python parent id", "Ev Idx")
SPACE_US = 1000.0


def lengthen(source: Path, times: int, target: Path) -> None:
    """A trace with the same events so many times over, one after the other, none of them tied to another's."""
    opened = gzip.decompress(source.read_bytes())
    document = orjson.loads(opened)
    events = document["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X"]
    begin = min(event["ts"] for event in timed)
    span = max(event["ts"] + event["dur"] for event in timed) - begin + SPACE_US
    with gzip.open(target, "wb", compresslevel=1) as file:
        head = orjson.dumps({key: value for key, value in document.items() if key != "traceEvents"})
        file.write(head[:-1] + b',"traceEvents":[')
        for turn in range(times):
            moved = [move(event, turn * span, turn * 10**7) for event in (timed if turn else events)]
            file.write((b"," if turn else b"") + orjson.dumps(moved)[1:-1])
        file.write(b"]}")


def move(event: dict[str, Any], later_us: float, identity: int) -> dict[str, Any]:
    """The event at a later time, with other identities."""
    moved = {**event, "ts": event["ts"] + later_us} if "ts" in event else dict(event)
    args = event.get("args")
    if args and identity:
        moved["args"] = {k: v + identity if k in IDENTITIES and isinstance(v, int) else v for k, v in args.items()}
    return moved


def sum_of_kernels(source: Path) -> float:
    """Of all durations on the device, by a loop that knows nothing of the reader."""
    events = orjson.loads(gzip.decompress(source.read_bytes()))["traceEvents"]
    return sum(event["dur"] for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))


def measure(path: Path) -> dict[str, Any]:
    """Reading and every table, in this process."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    from loop.analysis.evidence import gather
    from loop.analysis.pairing import open_captures

    (capture,) = open_captures([path])
    read_s = time.perf_counter() - begun
    evidence = gather(capture)
    return {
        "trace": path.name,
        "events": evidence.num_events,
        "read_s": read_s,
        "wall_s": time.perf_counter() - begun,
        "cpu_s": time.process_time() - begun_cpu,
        "peak_mb": peak_mb(),
        "total_us": evidence.total_us,
        "passes": len(capture.passes),
    }


def peak_mb() -> float:
    """Of this program alone: what getrusage tells is inherited from the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Print a line for each trace and length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.traces[0])))
        return
    found: list[dict[str, Any]] = []
    for source in asked.traces:
        for times in TIMES:
            with tempfile.TemporaryDirectory() as folder:
                path = source if times == 1 else Path(folder) / f"{times}x.trace.json.gz"
                if times > 1:
                    lengthen(source, times, path)
                command = [sys.executable, "-m", "tests.perf.trace_speed", "--one", str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append({**json.loads(done.stdout), "trace": source.name, "times": times})
            if abs(found[-1]["total_us"] - times * sum_of_kernels(source)) > 1:
                sys.exit(f"{source}: the tables' total {found[-1]['total_us']} is not the sum of the file's durations")
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print("| trace | events | wall s | CPU s | peak MB | CPU µs an event | against 1x |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    first: dict[str, float] = {}
    for row in found:
        each = 1e6 * row["cpu_s"] / row["events"]
        base = first.setdefault(row["trace"], each)
        print(
            f"| {row['trace']} {row['times']}x | {row['events']:,} | {row['wall_s']:.2f} | {row['cpu_s']:.2f} "
            f"| {row['peak_mb']:.0f} | {each:.2f} | {each / base:.2f} |"
        )


if __name__ == "__main__":
    main()
