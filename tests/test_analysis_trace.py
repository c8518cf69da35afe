"""Reading traces: whole and torn, gzipped or not, of one rank or several, in any chunks."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.analysis.chrome import Chrome, repair
from loop.analysis.pairing import open_captures
from loop.analysis.ranks import rank_of, same_rank
from loop.analysis.trace import Trace, read_trace
from loop.errors import InputError
from tests.traces import Event, document, event, kernel, launch, model_pass, read, step, write

TWO = [*model_pass(0, [["gemm_a", "norm_b"]] * 2), *model_pass(500, [["gemm_a", "norm_b"]] * 2, first_id=100)]

WHOLE = document(TWO)


def rows(trace: Trace) -> list[tuple[str, int, int]]:
    """What a trace holds of kernels: name, start and end."""
    spans = trace.kernels
    return sorted(
        (trace.names[n], int(s), int(e)) for n, s, e in zip(spans.name, spans.start_ns, spans.end_ns, strict=True)
    )


@pytest.mark.parametrize("name", ["t.trace.json", "t.trace.json.gz"])
def test_a_trace_is_read_gzipped_or_not(name: str, tmp_path: Path) -> None:
    """By its content, not its name."""
    trace = read_trace(write(tmp_path / name, TWO))

    assert 8 == len(trace.kernels)
    assert 8 == len(trace.launches)
    assert 40.0 == trace.kernels.duration_ns.sum() / 1000
    assert "" == trace.torn


def test_a_bare_array_of_events_is_a_trace(tmp_path: Path) -> None:
    """Chrome's format allows it."""
    path = tmp_path / "bare.json"
    text = document(TWO)
    path.write_bytes(text[text.index(b"[") : text.rindex(b"]") + 1])

    assert 8 == len(read_trace(path).kernels)


@given(chunk_bytes=st.integers(min_value=40, max_value=4000))
def test_chunks_may_end_anywhere(tmp_path_factory: pytest.TempPathFactory, chunk_bytes: int) -> None:
    """A cut inside an event, a string or nested braces is not taken for one between events."""
    tricky = [event("cpu_op", 'a "},{" b \\', 1, 1, args={"nested": [{"x": 1}, {"y": {}}]}) for _ in range(9)]
    path = tmp_path_factory.mktemp("chunks") / "t.json"
    path.write_bytes(json.dumps(json.loads(document([*TWO, *tricky])), indent=1).encode())

    batches = list(Chrome(path, chunk_bytes=chunk_bytes).batches())

    assert len(TWO) + 9 == sum(map(len, batches))


def test_a_torn_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """And says so."""
    rng = random.Random(1)
    many = [kernel(f"k{rng.random()}", n * 10, 5) for n in range(5000)]
    whole = gzip.compress(document(many))
    path = tmp_path / "torn.trace.json.gz"
    path.write_bytes(whole[: len(whole) // 2])

    trace = read_trace(path)

    assert "the gzip ends in the middle" == trace.torn
    assert 1000 < len(trace.kernels) < 5000


def test_a_torn_json_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """To the last whole event."""
    path = tmp_path / "torn.trace.json"
    path.write_bytes(document(TWO)[:-150])

    trace = read_trace(path)

    assert "the JSON ends in the middle" == trace.torn
    assert 8 == len(trace.kernels)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello", "no torch-profiler trace"),
        (b'{"a": 1}', "no torch-profiler trace"),
        (gzip.compress(b"x" * 99)[:12], "cannot be read: the gzip"),
        (b'{"traceEvents": []}', "nothing ran while it was profiled"),
        (b'{"traceEvents": [{"ph": "M", "name": "x"}]}', "nothing ran"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(content: bytes, words: str, tmp_path: Path) -> None:
    """And never with a traceback."""
    path = tmp_path / "t.trace.json"
    path.write_bytes(content)

    with pytest.raises(InputError, match=words):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(InputError, match=r"nowhere.json cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.json")


def test_numbers_that_are_no_json_are_repaired() -> None:
    """Kineto writes bandwidths of empty copies as inf."""
    assert b'{"a": null, "b": [null,1], "name": "x: infinite"}' == repair(
        b'{"a": inf, "b": [-nan,1], "name": "x: infinite"}'
    )


def test_an_event_that_cannot_be_understood_is_counted_and_left_out(tmp_path: Path) -> None:
    """The others are read."""
    trace = read(tmp_path, [*TWO, {"ph": "X", "cat": 7, "name": ["odd"]}])

    assert 1 == trace.num_unreadable
    assert 8 == len(trace.kernels)


@given(length=st.integers(min_value=0, max_value=len(WHOLE)))
def test_a_trace_cut_anywhere_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    """No event more than was written, and no other error."""
    path = tmp_path_factory.mktemp("cut") / "t.json"
    path.write_bytes(WHOLE[:length])

    try:
        trace = read_trace(path)
    except InputError:
        return
    assert len(trace.kernels) <= 8
    assert bool(trace.torn) == (length < len(WHOLE))


@given(rng=st.randoms(use_true_random=False), shift_us=st.integers(min_value=0, max_value=10**9))
def test_order_and_time_of_events_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, shift_us: int
) -> None:
    """A trace is a set of events on a clock that begins anywhere."""
    moved: list[Event] = [{**e, "ts": e["ts"] + shift_us} for e in TWO]
    rng.shuffle(moved)
    folder = tmp_path_factory.mktemp("order")
    plain, other = (read_trace(write(folder / name, events)) for name, events in (("a.json", TWO), ("b.json", moved)))

    assert rows(plain) == rows(other)
    assert plain.names == other.names
    assert plain.frames.start_ns.tolist() == other.frames.start_ns.tolist()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("1790857-TP-0-DECODE.trace.json.gz", "TP-0"),
        ("x-TP-1-DP-2-PP-0-EP-1-EXTEND.trace.json.gz", "TP-1-DP-2-PP-0-EP-1"),
        ("anything.json", ""),
    ],
)
def test_the_rank_stands_in_the_files_name(name: str, rank: str) -> None:
    """As SGLang writes it."""
    assert rank == rank_of(name)


def test_ranks_are_equal_where_both_name_them() -> None:
    """Files and merged traces spell them differently."""
    assert same_rank("TP-0-EP-0", "TP00-EP00")
    assert same_rank("TP-0", "0")
    assert not same_rank("TP-0", "TP-1")


def test_of_a_merged_trace_one_rank_is_read(tmp_path: Path) -> None:
    """Their correlations are not unique, so that they must not be mixed."""
    merged = [{**e, "pid": f"[TP0{rank}] {e['pid']}"} for rank in (0, 1) for e in TWO]
    path = write(tmp_path / "merged.trace.json", merged)

    first, second = read_trace(path), read_trace(path, "TP-1")

    assert (8, 8) == (len(first.kernels), len(second.kernels))
    assert ("TP00", ("TP01",)) == (first.rank, first.other_ranks)
    with pytest.raises(InputError, match="holds no rank TP-7; it holds TP00, TP01"):
        read_trace(path, "TP-7")


def test_traces_of_two_ranks_are_not_mixed(tmp_path: Path) -> None:
    """The refusal names the command for one."""
    paths = [write(tmp_path / f"1-TP-{rank}.trace.json", TWO) for rank in (0, 1)]

    with pytest.raises(InputError, match=r"different ranks: TP-0, TP-1(.|\n)*loop analyze --rank TP-0"):
        open_captures(paths)
    assert ["TP-1"] == [capture.trace.rank for capture in open_captures(paths, rank="1")]
    assert ["TP-0"] == [capture.trace.rank for capture in open_captures([tmp_path])]


def test_a_mapping_trace_of_another_rank_is_refused(tmp_path: Path) -> None:
    """Its kernels may be others."""
    formal, mapping = (write(tmp_path / f"1-TP-{rank}.trace.json", TWO) for rank in (0, 1))

    with pytest.raises(InputError, match=r"of rank TP-1, .* of rank TP-0"):
        open_captures([formal], mapping=mapping)


def test_a_directory_without_traces_is_refused(tmp_path: Path) -> None:
    """And not read as if it were one."""
    with pytest.raises(InputError, match="holds no trace"):
        open_captures([tmp_path])


def test_calls_of_any_runtime_are_launches(tmp_path: Path) -> None:
    """CUDA's driver, HIP and others."""
    trace = read(
        tmp_path, [launch(0, 1), event("xpu_runtime", "urEnqueue", 3, 1, args={"correlation": 2}), step("X", 0, 9)]
    )

    assert 2 == len(trace.launches)
