"""Profilers: what they leave, what they lack, and traces that must not be believed."""

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.dialects import Request
from loop.dialects.generate import Generate
from loop.errors import ServerError, UnfitError
from loop.loads import Decode, Prefill, Traffic
from loop.profilers import Target, processes_of
from loop.profilers.gpu_samples import GpuSamples
from loop.profilers.host_samples import HostSamples
from loop.profilers.ncu import Ncu
from loop.profilers.nsys import Nsys, wait_report
from loop.profilers.py_spy import PySpy, role_of
from loop.profilers.torch_trace import TorchTrace, find_problem
from loop.stacks import draw_flames, rank_functions, read_stacks

Start = Callable[..., Target]
QUICK = TorchTrace(num_steps=4, with_stack=False, record_shapes=False, started_s=2.0, saved_s=5.0)
TRACE = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": []}).encode())
FRAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=6)


def wave(number: int) -> list[Request]:
    """Three requests that no wave before had."""
    return [
        Request(rid=f"{number}-{i}", input_ids=(number, i, 7), max_new_tokens=400, ignore_eos=True) for i in range(3)
    ]


@contextmanager
def running(directory: Path, *faults: str) -> Iterator[Target]:
    """A fake server with these faults, as a profiler sees it."""
    log = directory / "server.log"
    flags = [word for fault in faults for word in ("--fault", fault)]
    command = [
        sys.executable,
        "-m",
        "loop.fake_server",
        "--model-path",
        "none",
        "--port",
        "0",
        "--tpot-ms",
        "2",
        *flags,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while "fired up" not in log.read_text():
            time.sleep(0.02)
        port = log.read_text().split("http://127.0.0.1:", 1)[1].split(" ", 1)[0]
        yield Target(url=f"http://127.0.0.1:{port}", python=sys.executable, pid=process.pid, log=log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server without faults."""
    with running(tmp_path_factory.mktemp("plain")) as target:
        yield target


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts a server with faults."""
    with ExitStack() as stack:
        yield lambda *faults: stack.enter_context(running(tmp_path, *faults))


def decode(target: Target) -> Decode:
    """A decode load of three streams."""
    return Decode(target.url, Generate, wave, concurrency=3, num_steps=10)


def steps(trace: Path) -> list[str]:
    """SGLang's spans in a trace."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event["name"] for event in events if event["name"].startswith("step[")]


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    return list(csv.DictReader(path.read_text().splitlines()))


# traces


def test_prefill_and_decode_are_apart(server: Target, tmp_path: Path) -> None:
    """Each in a trace of its own: four prompts, four decode steps, and no step of the other kind."""
    prefill = Prefill(server.url, Generate, wave, num_prompts=4)
    with prefill, QUICK.profile(server, "prefill", tmp_path / "prefill") as first:
        prefill.work()
    load = decode(server)
    with load, QUICK.profile(server, "decode", tmp_path / "decode") as second:
        load.work()

    assert ["step[EXTEND bs=1 toks=16]"] * 4 == steps(first[0])
    assert ["step[DECODE bs=1]"] * 4 == steps(second[0])
    assert first[0].name.startswith("prefill-")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("trace_missing", "0 of 1 rank wrote a trace"),
        ("trace_cut", "is cut off"),
        ("trace_stale", "is older than the profile"),
        ("profile_ignored", "did not begin it within 2 s"),
    ],
)
def test_a_trace_that_must_not_be_believed_is_refused(start: Start, tmp_path: Path, fault: str, said: str) -> None:
    """With what is wrong with it, and where to look."""
    target = start(fault)
    prefill = Prefill(target.url, Generate, wave, num_prompts=2)

    with pytest.raises(UnfitError, match=said) as caught, prefill:  # noqa: SIM117 - the load must go first
        with QUICK.profile(target, "prefill", tmp_path / "out"):
            prefill.work()
    assert "server.log" in caught.value.next


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TRACE, None),
        (TRACE[:-9], "cut off"),
        (b"", "is empty"),
        (gzip.compress(b'{"traceEvents": [{"name": "a"}'), None),
        (gzip.compress(b'{"traceEvents": [{"name": "a'), "the JSON ends in the middle"),
        (gzip.compress(b"{}"), "no trace"),
        (b"PK\x03\x04", "cut off"),
    ],
)
def test_a_trace_is_proven_before_it_is_believed(tmp_path: Path, content: bytes, said: str | None) -> None:
    """To its last byte. A cut between two events can only be found by reading it."""
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(content)
    found = find_problem(path, began_s=0.0)

    assert (found is None) if said is None else said in (found or "")


def test_a_trace_of_before_is_no_trace_of_now(tmp_path: Path) -> None:
    """Though it is whole."""
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(TRACE)
    os.utime(path, (1000, 1000))

    assert "older than the profile" in (find_problem(path, began_s=2000.0) or "")


def test_what_lies_there_already_is_never_taken_for_the_new(server: Target, tmp_path: Path) -> None:
    """Nor overwritten."""
    (tmp_path / "old.trace.json.gz").write_bytes(TRACE)

    with (
        pytest.raises(UnfitError, match=r"holds old\.trace\.json\.gz already"),
        QUICK.profile(server, "decode", tmp_path),
    ):
        raise AssertionError("never begins")


# samples


def test_pyspy_leaves_functions_and_flames(server: Target, tmp_path: Path) -> None:
    """Of every process of the server; here there is one."""
    load = Traffic(server.url, Generate, wave, concurrency=3, seconds=1.0)
    with load, PySpy().profile(server, "traffic", tmp_path / "spy") as files:
        load.work()
    rows = read_csv(tmp_path / "spy" / "tokenizer.functions.csv")

    assert {"tokenizer.folded", "tokenizer.functions.csv", "tokenizer.svg"} <= {path.name for path in files}
    assert any("fake_server" in row["function"] for row in rows)
    assert pytest.approx(100.0) == sum(float(row["self_pct"]) for row in rows)


def test_the_machine_is_read_while_it_works(server: Target, tmp_path: Path) -> None:
    """Ten times a second, process by process."""
    with HostSamples(period_s=0.05).profile(server, "traffic", tmp_path / "host"):
        time.sleep(0.3)
    rows = read_csv(tmp_path / "host" / "host.csv")

    assert len(rows) >= 3
    assert {str(server.pid)} == {row["pid"] for row in rows}
    assert all(int(row["rss_bytes"]) > 1_000_000 for row in rows)


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["sglang::scheduler_TP0"], "scheduler"),
        (["sglang::detokenizer"], "detokenizer"),
        (["python", "-m", "sglang.launch_server"], None),
    ],
)
def test_a_process_is_known_by_its_title(command: list[str], role: str | None) -> None:
    """As SGLang sets it."""
    assert role == role_of(command)


def test_a_server_that_is_gone_has_no_processes() -> None:
    """And what would sample it says so."""
    gone = Target(url="", python="", pid=2**22 - 1, log=Path("server.log"))

    assert [] == processes_of(gone)
    with pytest.raises(UnfitError, match="is gone"):
        HostSamples().check(gone)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu_its_sampler_says_what_is_missing(server: Target) -> None:
    """Before anything runs."""
    with pytest.raises(UnfitError, match="no GPU can be read") as caught:
        GpuSamples().check(server)
    assert "nvidia-ml-py" in caught.value.next


# profilers that start the server


@pytest.mark.parametrize(
    ("profiler", "flag"),
    [(Nsys(), "--capture-range=cudaProfilerApi"), (Ncu(kernel="gemm"), "--kernel-name regex:gemm")],
)
def test_a_program_that_is_not_installed_is_told_as_a_command(
    profiler: Nsys | Ncu, flag: str, server: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The exact one, to be typed where it is."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UnfitError, match=f"{profiler.name} is not installed") as caught:
        profiler.check(server)
    assert flag in caught.value.what
    assert f"{sys.executable} -m sglang.launch_server" in caught.value.what
    assert "Nsight" in caught.value.next


def test_a_profiler_stands_before_the_servers_interpreter(
    server: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is started in its place gets the interpreter and its arguments unchanged."""
    program = tmp_path / "nsys"
    program.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\nwhile [ "${1#/}" = "$1" ]; do shift; done\n'
                       'shift\nexec "$@"\n')  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = Nsys().wrap(server, tmp_path / "out dir")
    said = subprocess.run([script, "-c", "print(1 + 1)"], capture_output=True, text=True, check=True)

    assert "2" == said.stdout.strip()
    assert "--cuda-graph-trace=node" in (tmp_path / "asked").read_text()


def test_a_report_that_never_comes_is_an_error(server: Target, tmp_path: Path) -> None:
    """One that is there and no longer grows is taken."""
    with pytest.raises(UnfitError, match=r"no \*\.nsys-rep was written"):
        wait_report(tmp_path, ".nsys-rep", 0.3, server)
    (tmp_path / "report.nsys-rep").write_bytes(b"x")
    wait_report(tmp_path, ".nsys-rep", 2.0, server)


# loads


def test_a_load_that_is_left_ends_its_requests(server: Target) -> None:
    """Nothing of it keeps the server busy for whoever comes next."""
    with decode(server) as load:
        load.work()

    assert all(10 <= number < 400 for number in load.num_chunks)


@pytest.mark.parametrize("make", [decode, lambda t: Prefill(t.url, Generate, wave, num_prompts=1)])
def test_a_server_that_answers_nothing_ends_the_profile(start: Start, make: Callable[[Target], Decode]) -> None:
    """It is the server's failure, not the profiler's."""
    target = start("http_500")

    with pytest.raises(ServerError, match="profile traffic failed"), make(target) as load:
        load.work()


# stacks


def test_a_function_that_calls_itself_counts_once() -> None:
    """In its total; its own time is where it is innermost."""
    main, f, g = sorted(
        rank_functions(read_stacks("main;f;f 3\nmain;f;g 1\nno stack\n")), key=lambda row: -row.total_pct
    )

    assert (("main", 0.0, 100.0), ("f", 75.0, 100.0), ("g", 25.0, 25.0)) == tuple(
        (row.function, row.self_pct, row.total_pct)
        for row in sorted((main, f, g), key=lambda r: "mfg".index(r.function[0]))
    )


@given(st.lists(st.tuples(FRAMES, st.integers(1, 50)), min_size=1, max_size=20))
def test_own_shares_sum_to_a_hundred(samples: list[tuple[list[str], int]]) -> None:
    """Whatever the stacks; no total is above it, none below its own."""
    text = "\n".join(f"{';'.join(frames)} {number}" for frames, number in samples)
    rows = rank_functions(read_stacks(text))

    assert pytest.approx(100.0) == sum(row.self_pct for row in rows)
    assert all(row.self_pct <= row.total_pct <= 100.0 + 1e-9 for row in rows)
    assert sum(number for _, number in samples) == sum(row.self_samples for row in rows)


@given(st.lists(st.tuples(FRAMES, st.integers(1, 50)), max_size=20))
def test_a_flame_is_as_wide_as_its_time(samples: list[tuple[list[str], int]]) -> None:
    """And the picture is XML, whatever the names are."""
    text = "\n".join(f"{';'.join(f'<{frame}>&' for frame in frames)} {number}" for frames, number in samples)
    root = ET.fromstring(draw_flames(read_stacks(text), "a & b"))  # noqa: S314 - ours
    boxes = [
        (float(r.get("x", 0)), float(r.get("width", 0)), r.get("y")) for r in root.iter() if r.tag.endswith("rect")
    ]

    assert all(left >= 0 and left + width <= 1200.5 for left, width, _ in boxes)
    assert not samples or pytest.approx(1200.0) == max(width for _, width, _ in boxes)
