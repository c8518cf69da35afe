"""Promotion: what may ship, how the pointer moves, and what the launcher then serves."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loop import shipped
from loop.errors import HardStop, InputError
from loop.host import free_port
from loop.ledger import Ledger, Round
from loop.workspace import Workspace, find_workspace

Run = Callable[..., Round]
Write = Callable[..., str]


pytestmark = pytest.mark.xdist_group("won")


@pytest.fixture
def workspace(won: Workspace, tmp_path: Path) -> Workspace:
    """A copy of the workspace with a round that `fast` won."""
    shutil.copytree(won.root, tmp_path / "workspace")
    return find_workspace(tmp_path / "workspace")


@pytest.fixture
def win(workspace: Workspace) -> Round:
    """The round that `fast` won."""
    (round_,) = Ledger(workspace.ledger).read_all()
    assert round_.promotable, round_.verdict
    return round_


def test_a_promoted_bundle_is_what_the_launcher_serves(workspace: Workspace, win: Round, model: Path) -> None:
    """From a fresh, read-only copy of the workspace, and its hash is printed."""
    shipped.promote(workspace, win)
    copy = workspace.root.parent / "copy"
    shutil.copytree(workspace.root, copy, ignore=shutil.ignore_patterns("ledger", "reports"))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    port = free_port()
    settings = {"PORT": str(port), "MODEL_PATH": str(model), "LOOP_PYTHON": sys.executable}
    with subprocess.Popen(
        ["bash", str(copy / "launch_server.sh")],
        env={**os.environ, **settings, "LOOP_RUNTIME_DIR": str(copy.parent / "r")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        for line in process.stderr:
            if "fired up" in line:
                break
        info = httpx.get(f"http://127.0.0.1:{port}/server_info").json()
        process.send_signal(2)
        process.stderr.read()

    assert f"bundle fast sha256 {win.candidate.sha256} on cpu" in first
    assert 3.0 == info["tpot_ms"]


def test_only_an_improved_round_ships(noop: tuple[Workspace, Round]) -> None:
    """A round that proved nothing is refused with its verdict."""
    workspace, round_ = noop

    with pytest.raises(InputError, match=r"no_change \(identical\)"):
        shipped.promote(workspace, round_)


def test_a_bundle_that_was_edited_after_its_round_does_not_ship(
    workspace: Workspace, win: Round, write_bundle: Write
) -> None:
    """What ships is what was measured, byte for byte."""
    write_bundle("fast", parent="original", args={"tpot_ms": 1.0, "ttft_ms": 6.0})

    with pytest.raises(InputError, match="was changed after"):
        shipped.promote(workspace, win)


def test_a_round_against_something_else_than_what_is_shipped_does_not_ship(
    workspace: Workspace, win: Round, run: Run, write_bundle: Write
) -> None:
    """Two wins over the same old baseline do not add up unmeasured."""
    write_bundle("faster", parent="original", args={"tpot_ms": 2.0, "ttft_ms": 5.0})
    other = run("faster")
    shipped.promote(workspace, win)

    with pytest.raises(InputError, match="shipped now is fast"):
        shipped.promote(workspace, other)


def test_rolling_back_serves_what_was_shipped_before(
    workspace: Workspace, win: Round, run: Run, write_bundle: Write
) -> None:
    """Step by step, back to the original."""
    shipped.promote(workspace, win)
    write_bundle("faster", parent="shipped", args={"tpot_ms": 1.0, "ttft_ms": 2.0})
    shipped.promote(workspace, run("faster"))
    assert "faster" == shipped.read(workspace).devices["cpu"].bundle

    shipped.roll_back(workspace, "cpu")
    assert "fast" == shipped.read(workspace).devices["cpu"].bundle

    shipped.roll_back(workspace, "cpu")
    assert {} == shipped.read(workspace).devices
    with pytest.raises(InputError, match="nothing to roll back"):
        shipped.roll_back(workspace, "cpu")


def test_the_preview_is_the_difference_in_what_production_runs(workspace: Workspace, win: Round) -> None:
    """A person reads it before promoting."""
    text = shipped.preview(workspace, win)

    assert "---tpot-ms 12.0" in text
    assert "+--tpot-ms 3.0" in text


def test_nothing_ships_from_a_broken_chain(workspace: Workspace, win: Round) -> None:
    """A changed round is evidence of nothing."""
    path = Ledger(workspace.ledger).rounds / f"{win.id}.json"
    document = json.loads(path.read_text())
    document["hypothesis"] = "edited"
    path.write_text(json.dumps(document))

    with pytest.raises(HardStop, match="was changed after it closed"):
        shipped.promote(workspace, win)


def test_a_round_measured_with_a_changed_judge_does_not_ship(workspace: Workspace, win: Round) -> None:
    """The judge and the judged are apart."""
    revision = win.revision.model_copy(update={"dirty": ("loop/judge.py",)})

    with pytest.raises(InputError, match="measured with a changed judge"):
        shipped.promote(workspace, win.model_copy(update={"revision": revision}))


def test_a_round_measured_with_another_suite_does_not_ship(workspace: Workspace, win: Round) -> None:
    """Bars that were lowered for one round and restored after it prove nothing."""
    suite = workspace.workloads / "brief" / "suite.toml"
    suite.write_text(suite.read_text().replace("max_blocks = 3", "max_blocks = 4"))

    with pytest.raises(InputError, match="was measured with suite brief"):
        shipped.promote(workspace, win)


def test_a_round_of_another_engine_does_not_ship(workspace: Workspace, win: Round) -> None:
    """A rehearsal on the fake engine must not replace production."""
    engine = win.engine.model_copy(update={"name": "sglang"})

    with pytest.raises(InputError, match="was measured with the engine sglang"):
        shipped.promote(workspace, win.model_copy(update={"engine": engine}))
