"""`loop analyze` as a person meets it."""

import csv
import json
from pathlib import Path

import pytest

from loop.exhibits import cell, fit, stems
from tests.conftest import REPOSITORY, Answer, ask
from tests.traces import model_pass, write

DATA = REPOSITORY / "tests" / "data"
BEFORE, AFTER = [["norm", "gemm_a", "silu"]] * 2, [["norm", "gemm_b", "silu"]] * 2


def analyze(folder: Path, *arguments: str | Path) -> Answer:
    """The command's answer."""
    return ask(folder, "analyze", *map(str, arguments))


def toy(folder: Path, name: str, layers: list[list[str]]) -> Path:
    """A trace of one pass."""
    return write(folder / name, model_pass(0, layers))


def test_the_terminal_shows_every_table_within_80_columns(tmp_path: Path) -> None:
    """Each with what to look at first and the next edit; numbers are never cut."""
    shown = analyze(
        tmp_path, DATA / "h200-decode-graph-on.trace.json.gz", "--mapping", DATA / "h200-decode-graph-off.trace.json.gz"
    )
    lines = shown.stdout.splitlines()

    assert 0 == shown.returncode, shown.stderr
    assert 10 == sum(line.startswith("first  ") for line in lines) == sum(line.startswith("next   ") for line in lines)
    assert "NVIDIA H200" in shown.stdout
    assert "5685.4" in shown.stdout
    assert max(map(len, lines[1:])) <= 80


def test_one_json_document_holds_all(tmp_path: Path) -> None:
    """Of the chosen tables."""
    shown = analyze(tmp_path, toy(tmp_path, "a.trace.json", BEFORE), "--table", "kernels", "--json")
    (evidence,) = json.loads(shown.stdout)

    assert ["kernels"] == [each["table"] for each in evidence["tables"]]
    assert {"gemm_a", "norm", "silu"} == {row["kernel"] for row in evidence["tables"][0]["rows"]}


def test_a_folder_gets_a_csv_file_per_table_and_a_json_file(tmp_path: Path) -> None:
    """With every row and column."""
    shown = analyze(tmp_path, toy(tmp_path, "a.trace.json", BEFORE), "--out", tmp_path / "deep" / "out")
    with (tmp_path / "deep" / "out" / "a.kernels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert "11 files written" in shown.stderr
    assert 30.0 == sum(float(row["gpu_us"]) for row in rows)
    assert "" == rows[0]["projection"]
    assert json.loads((tmp_path / "deep" / "out" / "a.json").read_text())["total_us"] == 30.0


def test_the_difference_names_what_appeared_and_vanished(tmp_path: Path) -> None:
    """A pass of each, the largest change first; differences sum to the stage's."""
    paths = toy(tmp_path, "a.trace.json", BEFORE), toy(tmp_path, "b.trace.json", [*AFTER, ["norm", "silu"]])
    filled = json.loads(analyze(tmp_path, "--diff", *paths, "--json").stdout)
    status = {row["kernel"]: row["status"] for row in filled["rows"]}

    assert {"gemm_a": "vanished", "gemm_b": "appeared", "norm": "slower", "silu": "slower"} == status
    assert 10.0 == sum(row["delta_us"] for row in filled["rows"])
    assert "compare the two" in filled["advice"]["next_edit"]


def test_equal_traces_do_not_differ(tmp_path: Path) -> None:
    """The advice doubts that the change was engaged."""
    shown = analyze(tmp_path, "--diff", toy(tmp_path, "a.trace.json", BEFORE), toy(tmp_path, "b.trace.json", BEFORE))

    assert "no kernel moved" in shown.stdout
    assert "prove it is engaged" in " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no trace is named"),
        (("--diff", "a.trace.json"), "--diff compares two traces, 1 are named"),
        (("nowhere.json",), "nowhere.json cannot be read"),
        (("a.trace.json", "--table", "kernel"), "did you mean 'kernels'?"),
        (("a.trace.json", "--rank", "TP-3"), "no trace of rank TP-3"),
        (("one-TP-0.json", "two-TP-1.json"), "of different ranks"),
    ],
)
def test_wrong_input_is_named(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """With exit code 2 and without a traceback."""
    for name in ("a-TP-0.trace.json", "a.trace.json", "one-TP-0.json", "two-TP-1.json"):
        toy(tmp_path, name, BEFORE)
    if "--rank" in arguments:
        arguments = ("a-TP-0.trace.json", *arguments[1:])
    shown = analyze(tmp_path, *arguments)

    assert 2 == shown.returncode
    assert words in shown.stderr
    assert "next:" in shown.stderr or "--table" in arguments


def test_a_torn_trace_is_analyzed_with_a_note(tmp_path: Path) -> None:
    """Of what could be read."""
    path = toy(tmp_path, "a.trace.json", BEFORE)
    path.write_bytes(path.read_bytes()[:-100])
    shown = analyze(tmp_path, path, "--table", "kernels")

    assert 0 == shown.returncode
    assert "the JSON ends in the middle" in shown.stdout


def test_files_of_one_name_do_not_overwrite_each_other() -> None:
    """Two directories may hold the same name."""
    assert ["x", "x~2", "y"] == stems([Path("a/x.trace.json.gz"), Path("b/x.trace.json.gz"), Path("y.json")])


def test_texts_give_way_before_numbers() -> None:
    """Down to six letters."""
    assert 60 == fit([["name", "short"]], ("name",), {"name"})
    assert 6 < fit([["name", "long" * 99], ["n", "1" * 40]], ("name", "n"), {"name"}) < 60
    assert 6 == fit([["name", "long" * 99], ["n", "1" * 90]], ("name", "n"), {"name"})
    assert "" == cell(None)
    assert "1.5" == cell(1.52)
