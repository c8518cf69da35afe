"""Tables of real H200 traces against a dumb loop over the same events, and what a wrong file is told."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from loop.analysis.evidence import Evidence, gather, table_names
from loop.analysis.pairing import open_captures
from tests.conftest import ask

DATA = Path(__file__).parent / "data"
TRACES = ("h200-decode-graph-off", "h200-decode-graph-on", "h200-prefill-2048")


def evidence_of(path: Path) -> Evidence:
    """Every table of the trace, which explains itself: no mapping trace beside it is looked for."""
    (capture,) = open_captures([path])
    return gather(capture)


def table(evidence: Evidence, name: str) -> tuple[dict[str, Any], ...]:
    """The rows of one table."""
    return next(filled.rows for filled in evidence.tables if filled.table == name)


def events_of(name: str) -> list[dict[str, Any]]:
    """The trace's own events."""
    events: list[dict[str, Any]] = orjson.loads(gzip.decompress((DATA / f"{name}.trace.json.gz").read_bytes()))[
        "traceEvents"
    ]
    return events


@pytest.fixture(params=TRACES)
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """One trace alone in a directory."""
    path = tmp_path / f"{request.param}.trace.json.gz"
    path.write_bytes((DATA / path.name).read_bytes())
    return request.param, path


def test_totals_are_the_traces_own_sums(trace: tuple[str, Path]) -> None:
    """Every kernel, copy and set once, in whatever stage."""
    name, path = trace
    device = ("kernel", "gpu_memcpy", "gpu_memset")
    total_us = sum(event["dur"] for event in events_of(name) if event.get("cat") in device)

    evidence = evidence_of(path)

    assert total_us == pytest.approx(evidence.total_us, rel=1e-6)
    assert total_us == pytest.approx(sum(row["gpu_us"] for row in table(evidence, "kernels")), rel=1e-6)


def test_shares_of_a_stage_sum_to_a_hundred(trace: tuple[str, Path]) -> None:
    """What is too small for a row is in `other`."""
    shares: dict[str, float] = defaultdict(float)
    for row in table(evidence_of(trace[1]), "kernels"):
        shares[row["stage"]] += row["share_pct"]

    assert shares
    assert all(share == pytest.approx(100, abs=0.01) for share in shares.values()), shares


def test_shifted_times_change_no_table(trace: tuple[str, Path], tmp_path: Path) -> None:
    """Only differences of times mean anything."""
    name, path = trace
    shifted = [{**event, "ts": event["ts"] + 1e6} if "ts" in event else event for event in events_of(name)]
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    later = tmp_path / "later" / path.name
    later.parent.mkdir()
    later.write_bytes(gzip.compress(orjson.dumps({**document, "traceEvents": shifted})))

    for wanted in ("kernels", "idle_gaps", "overlap"):
        for row, other in zip(table(evidence_of(path), wanted), table(evidence_of(later), wanted), strict=True):
            numbers = {key: value for key, value in row.items() if isinstance(value, float)}
            assert numbers == pytest.approx({key: other[key] for key in numbers}, rel=1e-3, abs=0.01)


def test_a_decode_without_graphs_is_launch_bound(tmp_path: Path) -> None:
    """The device waits for the host most of the time, and the kernels know who launched them."""
    path = tmp_path / "h200-decode-graph-off.trace.json.gz"
    path.write_bytes((DATA / path.name).read_bytes())

    evidence = evidence_of(path)

    assert any(row["python_location"] for row in table(evidence, "kernels"))
    assert all(row["idle_pct"] > 40 for row in table(evidence, "forward_passes") if row["mode"] == "DECODE")


def test_every_table_ends_with_what_to_do_next(trace: tuple[str, Path]) -> None:
    """One thing to look at first, one edit; an empty one says why."""
    evidence = evidence_of(trace[1])

    assert table_names() == tuple(filled.table for filled in evidence.tables)
    for filled in evidence.tables:
        assert (filled.advice is not None) == bool(filled.rows), filled.table
        assert bool(filled.why_empty) != bool(filled.rows), filled.table


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    """On a terminal, as JSON and as files."""
    path = tmp_path / "h200-prefill-2048.trace.json.gz"
    path.write_bytes((DATA / path.name).read_bytes())

    shown = ask(tmp_path, "analyze", path.name)
    document = ask(tmp_path, "analyze", path.name, "--json", "--out", "tables")

    assert 0 == shown.returncode
    assert "NVIDIA H200" in shown.stdout
    assert "h200-prefill-2048" in json.loads(document.stdout)[0]["trace"]
    assert list((tmp_path / "tables").rglob("*kernels.csv"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "x.trace.json"), (b"not json", "x.trace.json"), (b"{}", "x.trace.json")],
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """With the file, exit code 2 and no traceback."""
    (tmp_path / "x.trace.json").write_bytes(content)

    done = ask(tmp_path, "analyze", "x.trace.json")

    assert 2 == done.returncode
    assert message in done.stderr


def test_a_trace_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """And said to be: a profile that was copied too early is common."""
    whole = (DATA / "h200-prefill-2048.trace.json.gz").read_bytes()
    path = tmp_path / "cut.trace.json.gz"
    path.write_bytes(whole[: len(whole) * 2 // 3])

    evidence = evidence_of(path)

    assert 0 < evidence.num_events < 4500
    assert any("the tables are of what could be read" in note for note in evidence.notes)
