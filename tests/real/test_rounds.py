"""Rounds on a real SGLang: what the demo promises, checked on the record and not on the clock."""

import os
import sys
from pathlib import Path

import pytest
import tomlkit

from loop import starter
from loop.host import marked_processes
from loop.ledger import Ledger, Round
from loop.plan import Options, make_plan
from loop.run import run_round
from loop.watch import Watcher
from loop.workspace import Workspace, find_workspace
from tests.conftest import bundle_in, write_suite

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Workspace:
    """A workspace with the `brief` suite and a real SGLang."""
    root = tmp_path_factory.mktemp("real") / "workspace"
    list(starter.init(root, synthetic=None, seed=0, model_dir=None))
    write_suite(root / "workloads" / "brief")
    settings = {
        "schema": "loop.workspace/1",
        "suite": "brief",
        "engine": {"name": "sglang", "python": sys.executable},
        "model": {"path": str(model)},
        "device": {"cpu": {"sigma_prior_pct": 10.0}},
    }
    (root / "loop.toml").write_text(tomlkit.dumps(settings))
    workspace = find_workspace(root)
    list(starter.refresh_originals(workspace))
    return workspace


@pytest.fixture(scope="module")
def whole(workspace: Workspace) -> Round:
    """A complete A/B/A round of a bundle that sets an option and a variable."""
    bundle_in(workspace, "whole", numerics="near", args={"dtype": "float32"}, env={"OMP_NUM_THREADS": "2"})
    return run_round(make_plan(workspace, "whole", Options(baseline="original", extend=False)), Watcher())


def test_a_real_round_measures_every_step_of_every_session(whole: Round) -> None:
    """Three servers, each checked and timed, all requests answered."""
    assert ["A1", "B", "A2"] == [session.label for session in whole.sessions]
    assert {3} == {len(session.measurements) for session in whole.sessions}
    assert {} == {m.step.name: m.failures for s in whole.sessions for m in s.measurements if m.failures}
    assert all(session.exit.clean for session in whole.sessions)


def test_the_answers_of_a_real_round_match(whole: Round) -> None:
    """The synthetic model's margins are far above the noise of another summation order."""
    found = {gate.gate: gate.outcome for gate in whole.gates}

    assert {"config": "passed", "prefix_match": "passed", "success": "passed", "timed_path": "passed"}.items() <= (
        found.items()
    )


def test_nothing_of_a_real_round_is_left_running(whole: Round) -> None:
    """Scheduler, detokenizer, resource tracker: all are gone."""
    assert [] == list(marked_processes(whole.id))


def test_a_real_bundle_that_changes_outputs_is_refused(workspace: Workspace) -> None:
    """Truncated prompts give other answers; nothing is timed."""
    bundle_in(workspace, "cut-context", args={"context_length": 48, "allow_auto_truncate": True})

    round_ = run_round(make_plan(workspace, "cut-context", Options(baseline="original")), Watcher())

    assert round_.verdict is not None
    assert ("regressed", "prefix_match") == (round_.verdict.outcome, round_.verdict.reason)
    assert {"A1": 3, "B": 1, "A2": 1} == {s.label: len(s.measurements) for s in round_.sessions}


def test_a_real_server_that_does_not_start_is_a_verdict_with_its_last_lines(workspace: Workspace) -> None:
    """SGLang refuses the option at start; the log tail says why."""
    bundle_in(workspace, "bad", args={"attention_backend": "fa3"})

    round_ = run_round(make_plan(workspace, "bad", Options(baseline="original")), Watcher())

    assert round_.verdict is not None
    assert ("regressed", "server_start_failed") == (round_.verdict.outcome, round_.verdict.reason)
    crash = round_.sessions[1].crash
    assert crash is not None
    assert crash.log_tail


def test_the_real_ledger_verifies(workspace: Workspace, whole: Round) -> None:
    """Also after rounds that ended badly."""
    assert whole.status == "closed"
    assert Ledger(workspace.ledger).verify() >= 1
    assert os.access(workspace.reports / f"{whole.id}-whole.md", os.R_OK)
