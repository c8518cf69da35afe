"""Profiled sessions: their files, their record, and what a round says of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loop.analysis.pairing import open_captures
from loop.bundles import Expect
from loop.compare import Comparison
from loop.digest import compare_profiles
from loop.engines.sglang import SGLang
from loop.ledger import Ledger, Round
from loop.plan import load_effective
from loop.record import sha256_of_file
from loop.workspace import Workspace, find_workspace
from tests.conftest import REPOSITORY, Answer, bundle_in

Loop = Callable[..., Answer]


def comparison(effect_pct: float) -> Comparison:
    """A workload's, known to within five per cent."""
    return Comparison.model_validate(
        {
            "scope": "four", "metric": "makespan", "unit": "ms", "better": "lower", "sessions": {}, "speedup": 1.0,
            "effect_pct": effect_pct, "low_pct": effect_pct - 5, "high_pct": effect_pct + 5, "sigma_pct": 1.0, "dof": 4,
            "min_effect_pct": 1.0, "mde_pct": 2.0, "drift_pct": 0.0, "drift_limit_pct": 3.0, "drifted": False,
            "futile": False, "outcome": "improved",
        }
    )  # fmt: skip


def test_a_bundle_is_profiled_in_two_sessions_that_no_round_knows(loop: Loop, workspace: Workspace) -> None:
    """Graphs off for who launches what, as it is served for how long it takes; files beside a record of them."""
    said = loop("profile", "noop", "--seconds", "0.5", "--steps", "3", "--json", "--workload", "one")
    document = json.loads(said.stdout)
    directory = Path(document["directory"])
    mapping, formal = document["profiles"]

    assert 0 == said.returncode
    assert (("mapping", "formal"), "one") == ((mapping["kind"], formal["kind"]), formal["workload"])
    assert {"torch_trace"} == {harvest["profiler"] for harvest in mapping["harvests"]}
    assert {"torch_trace", "py_spy", "host_samples"} <= {harvest["profiler"] for harvest in formal["harvests"]}
    files = [file for one in document["profiles"] for harvest in one["harvests"] for file in harvest["files"]]
    assert all(file["sha256"] == sha256_of_file(directory / file["path"]) for file in files)
    assert document["profiles"] == json.loads((directory / "profiles.json").read_text())
    assert {"fake_gemm_kernel"} < {row["name"] for row in formal["highlights"] if row["where"] == "decode"}
    assert {"decode", "prefill"} == {p.stage for c in open_captures([directory / "formal"]) for p in c.passes}
    assert [] == Ledger(workspace.ledger).read_all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workload", "ones"), "did you mean 'one'?"),
        (("--profiler", "pyspy"), "did you mean 'py_spy'?"),
        (("--only", "formall"), "known: mapping, formal"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_before_a_server_starts(
    loop: Loop, options: tuple[str, ...], said: str
) -> None:
    """Exit 2, with the known names."""
    answer = loop("profile", "noop", *options)

    assert 2 == answer.returncode
    assert said in answer.stderr


def test_a_trace_that_is_cut_is_told_and_the_other_profilers_go_on(
    loop: Loop, write_bundle: Callable[..., str]
) -> None:
    """Nothing of it is believed, and everybody is told what is wrong."""
    write_bundle("cut", args={"fault": ["trace_cut"]})
    chosen = ("--profiler", "torch_trace", "--profiler", "host_samples")
    said = loop("profile", "cut", "--only", "formal", "--seconds", "0.5", *chosen)

    assert "torch_trace under prefill:" in said.stdout
    assert "is cut off" in said.stdout
    assert "host_samples under traffic: 1 file" in said.stdout
    assert "kernels of" not in said.stdout


def test_a_round_keeps_what_its_profiles_say(run: Callable[..., Round], loop: Loop, workspace: Workspace) -> None:
    """Two more sessions after the timed ones, which no gate and no comparison sees; the page shows what moved."""
    bundle_in(
        workspace,
        "quick",
        args={"tpot_ms": 0.5},
        expect={"workload": "four", "metric": "makespan", "effect_pct": 10.0},
    )
    document = run("quick", profile_s=0.5).document()
    profiled = document["profiled"]
    (page,) = (path for path in workspace.reports.glob("R*.md"))
    (stage,) = (one for one in profiled["stages"] if one["stage"] == "decode")

    assert ["A1", "B", "A2"] == [session["label"] for session in document["sessions"]]
    assert ["A", "B"] == [one["arm"] for one in profiled["profiles"]]
    assert pytest.approx(300.0, rel=0.01) == stage["before_us"]
    assert pytest.approx(150.0, rel=0.01) == stage["after_us"]
    assert {"faster"} == {one["status"] for one in profiled["moved"]}
    assert "+10.0 % of four expected" in profiled["expectation"]
    assert "| decode | `fake_gemm_kernel` | faster | 100.0 | 50.0 |" in page.read_text()
    assert 0 == loop("ledger", "verify").returncode


@pytest.mark.parametrize(
    ("effect_pct", "said"),
    [(10.0, "as expected"), (2.0, "less than expected"), (40.0, "measured (+35.0 to +45.0): more")],
)
def test_an_expectation_is_held_against_what_was_measured(tmp_path: Path, effect_pct: float, said: str) -> None:
    """Also where no profile tells what moved, which is said."""
    expect = Expect(workload="four", metric="makespan", effect_pct=10.0)
    found = compare_profiles([], tmp_path, expect, [comparison(effect_pct)]).expectation or ""

    assert said in found
    assert "no profile of both arms" in found


def test_nothing_expected_is_nothing_said(tmp_path: Path) -> None:
    """None, not a sentence about nothing."""
    assert compare_profiles([], tmp_path, None, [comparison(5.0)]).expectation is None


def test_a_server_without_graphs_is_the_same_but_for_one_switch() -> None:
    """Sealed, because the launcher would refuse what was edited."""
    here = find_workspace(REPOSITORY)
    engine = SGLang(python=here.engine_python())
    _, effective = load_effective(here, engine, "noop", "cpu")
    found = engine.without_graphs(effective)

    assert (*effective.argv, "--disable-cuda-graph") == found.argv
    assert found.argv == engine.without_graphs(found).argv
    assert found.seal == found.expected_seal != effective.seal
