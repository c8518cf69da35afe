"""Promotion: what may ship, how the pointer moves, and what the launcher then serves."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from loop import shipped
from loop.errors import HardStop, InputError
from loop.host import free_port
from loop.ledger import Failure, Ledger, Round
from loop.promotion import carry_out, plan_confirmation, plan_promotion, plan_rollback
from loop.shipped import Shipped
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


def confirmed(workspace: Workspace, round_: Round, **fields: Any) -> Round:
    """Store a round that confirms `round_` with the same numbers, as `loop confirm` would measure them."""
    ledger = Ledger(workspace.ledger)
    confirmation = round_.model_copy(
        update={"id": ledger.new_id(), "purpose": "confirmation", "confirms": round_.id, **fields}
    )
    ledger.write(confirmation)
    return confirmation


def promote(workspace: Workspace, round_: Round) -> Shipped:
    """Confirm the round if nothing does yet, and ship its candidate."""
    if not any(other.confirms == round_.id for other in Ledger(workspace.ledger).read_all()):
        confirmed(workspace, round_)
    return carry_out(workspace, plan_promotion(workspace, round_))


def roll_back(workspace: Workspace) -> Shipped:
    """Ship what was shipped before."""
    return carry_out(workspace, plan_rollback(workspace, "cpu"))


def test_a_promoted_bundle_is_what_the_launcher_serves(workspace: Workspace, win: Round, model: Path) -> None:
    """From a fresh, read-only copy of the workspace, and its hash is printed."""
    promote(workspace, win)
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
        plan_promotion(workspace, round_)


def test_a_bundle_that_was_edited_after_its_round_does_not_ship(
    workspace: Workspace, win: Round, write_bundle: Write
) -> None:
    """What ships is what was measured, byte for byte."""
    write_bundle("fast", parent="original", args={"tpot_ms": 1.0, "ttft_ms": 6.0})

    with pytest.raises(InputError, match="was changed after"):
        promote(workspace, win)


def test_a_round_against_something_else_than_what_is_shipped_does_not_ship(
    workspace: Workspace, win: Round, run: Run, write_bundle: Write
) -> None:
    """Two wins over the same old baseline do not add up unmeasured."""
    write_bundle("faster", parent="original", args={"tpot_ms": 2.0, "ttft_ms": 5.0})
    other = run("faster")
    promote(workspace, win)

    with pytest.raises(InputError, match="shipped now is fast"):
        promote(workspace, other)


def test_rolling_back_serves_what_was_shipped_before(
    workspace: Workspace, win: Round, run: Run, write_bundle: Write
) -> None:
    """Step by step, back to the original."""
    promote(workspace, win)
    write_bundle("faster", parent="shipped", args={"tpot_ms": 1.0, "ttft_ms": 2.0})
    promote(workspace, run("faster"))
    assert "faster" == shipped.read(workspace).devices["cpu"].bundle

    roll_back(workspace)
    assert "fast" == shipped.read(workspace).devices["cpu"].bundle

    roll_back(workspace)
    assert {} == shipped.read(workspace).devices
    with pytest.raises(InputError, match="nothing to roll back"):
        roll_back(workspace)


def test_the_preview_is_the_difference_in_what_production_runs(workspace: Workspace, win: Round) -> None:
    """A person reads it before promoting."""
    confirmed(workspace, win)

    text = plan_promotion(workspace, win).preview()

    assert "---tpot-ms 12.0" in text
    assert "+--tpot-ms 3.0" in text


def test_a_rollback_can_be_previewed_too(workspace: Workspace, win: Round) -> None:
    """The same difference, backwards; nothing moves."""
    promote(workspace, win)

    text = plan_rollback(workspace, "cpu").preview()

    assert "+--tpot-ms 12.0" in text
    assert "fast" == shipped.read(workspace).devices["cpu"].bundle


def test_a_round_of_another_loop_does_not_ship(workspace: Workspace, win: Round) -> None:
    """Outside git too: a judge that was edited for one round and restored after it proves nothing."""
    revision = win.revision.model_copy(update={"package_sha256": "0" * 64})

    with pytest.raises(InputError, match="judged by another loop"):
        promote(workspace, win.model_copy(update={"revision": revision}))


def test_a_win_that_nobody_confirmed_does_not_ship(workspace: Workspace, win: Round) -> None:
    """The message names the command that confirms it."""
    with pytest.raises(InputError, match=f"`loop confirm {win.id}` measures it afresh"):
        plan_promotion(workspace, win)


def test_the_first_confirmation_decides(workspace: Workspace, win: Round) -> None:
    """Whoever may try until a round wins confirms noise; an invalid round or an interrupted one is no try."""
    assert win.verdict is not None
    lost = win.verdict.model_copy(update={"outcome": "inconclusive"})
    void = win.verdict.model_copy(update={"outcome": "invalid", "reason": "drift"})
    failure = Failure(kind="interrupted", message="by a person")
    confirmed(workspace, win, verdict=void)
    confirmed(workspace, win, verdict=None, failure=failure)
    first = confirmed(workspace, win, verdict=lost)
    confirmed(workspace, win)

    with pytest.raises(InputError, match=f"{first.id} did not confirm {win.id}"):
        plan_promotion(workspace, win)


def test_a_confirmation_ships_the_win_that_it_confirms(workspace: Workspace, win: Round) -> None:
    """Whichever of the two rounds is named; the pointer names both."""
    confirmation = confirmed(workspace, win)

    entry = carry_out(workspace, plan_promotion(workspace, confirmation)).devices["cpu"]

    assert (win.id, confirmation.id) == (entry.round, entry.confirmation)


def test_a_confirmation_repeats_the_win_against_what_is_shipped(workspace: Workspace, win: Round) -> None:
    """Same candidate, same suite, and its purpose in the record."""
    plan = plan_confirmation(workspace, win, protocol="aba", port=None)

    assert ("confirmation", win.id) == (plan.purpose, plan.confirms)
    assert (win.candidate.sha256, win.baseline.sha256) == (plan.candidate.sha256, plan.baseline.sha256)
    assert win.fingerprint == plan.fingerprint


def test_a_win_of_another_machine_cannot_be_confirmed_here(workspace: Workspace, win: Round) -> None:
    """The field that differs is named."""
    host = win.host.model_copy(update={"kernel": "9.9"})
    elsewhere = win.model_copy(update={"host": host, "fingerprint": "0" * 64})

    with pytest.raises(InputError, match=r"kernel: 9\.9 there, .* here"):
        plan_confirmation(workspace, elsewhere, protocol="aba", port=None)


def test_nothing_ships_from_a_broken_chain(workspace: Workspace, win: Round) -> None:
    """A changed round is evidence of nothing."""
    path = Ledger(workspace.ledger).rounds / f"{win.id}.json"
    document = json.loads(path.read_text())
    document["hypothesis"] = "edited"
    path.write_text(json.dumps(document))

    with pytest.raises(HardStop, match="was changed after it closed"):
        promote(workspace, win)


def test_a_round_measured_with_a_changed_judge_does_not_ship(workspace: Workspace, win: Round) -> None:
    """The judge and the judged are apart."""
    revision = win.revision.model_copy(update={"dirty": ("loop/judge.py",)})

    with pytest.raises(InputError, match="measured with a changed judge"):
        promote(workspace, win.model_copy(update={"revision": revision}))


def test_a_round_measured_with_another_suite_does_not_ship(workspace: Workspace, win: Round) -> None:
    """Bars that were lowered for one round and restored after it prove nothing."""
    suite = workspace.workloads / "brief" / "suite.toml"
    suite.write_text(suite.read_text().replace("max_blocks = 3", "max_blocks = 4"))

    with pytest.raises(InputError, match="was measured with suite brief"):
        promote(workspace, win)


def test_a_round_of_another_engine_does_not_ship(workspace: Workspace, win: Round) -> None:
    """A rehearsal on the fake engine must not replace production."""
    engine = win.engine.model_copy(update={"name": "sglang"})

    with pytest.raises(InputError, match="was measured with the engine sglang"):
        promote(workspace, win.model_copy(update={"engine": engine}))
