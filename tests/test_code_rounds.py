"""Bundles with code, from `bundle.toml` to the verdict, on the fake engine's own source."""

import difflib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from loop.content import read_effective
from loop.errors import BundleError, InputError
from loop.fake_server import delays
from loop.ledger import Ledger, Round
from loop.packages import sha256_of_bytes
from loop.plan import Options, load_arm, load_engine, make_plan
from loop.promotion import carry_out, plan_promotion
from loop.run import run_round
from loop.watch import Watcher
from loop.workspace import Workspace, find_workspace
from tests.conftest import bundle_in, make_workspace
from tests.test_promotion import confirmed

Run = Callable[..., Round]
DELAYS = Path(delays.__file__)
RAISING = "def activate():\n    raise RuntimeError('no such kernel')\n"
HOOK = """
from loop_witness import fired

def activate():
    import loop.fake_server.delays as delays
    original = delays.Delays.__init__
    def init(self, *args, **kwargs):
        fired("hook:delays")
        original(self, *args, **kwargs)
    delays.Delays.__init__ = init
"""


def patch_of(bundle: Path, change: Callable[[str], str]) -> dict[str, object]:
    """A `[[patch]]` of the fake server's delays, its diff written into the bundle's directory."""
    old = DELAYS.read_text()
    new = change(old)
    assert new != old
    name = "loop/fake_server/delays.py"
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{name}", f"b/{name}")
    bundle.mkdir(parents=True, exist_ok=True)
    (bundle / "p.diff").write_text("".join(lines))
    sha256 = sha256_of_bytes(old.encode())
    return {"package": "loop", "file": "p.diff", "pre_sha256": {"fake_server/delays.py": sha256}}


def gate(round_: Round, name: str) -> tuple[str, str]:
    """(outcome, text) of one gate."""
    return next((result.outcome, result.text) for result in round_.gates if result.gate == name)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Workspace, Round]:
    """A workspace whose only round found a patched fake server, with a plugin in it, better than the installed one."""
    workspace = make_workspace(tmp_path_factory.mktemp("patched") / "workspace", model)
    bundle_in(workspace, "original", args={"tpot_ms": 12.0, "ttft_ms": 30.0})
    directory = workspace.candidates / "quick"
    patch = patch_of(directory, lambda text: text.replace("session_factor * args.tpot_ms", "0.2 * args.tpot_ms"))
    (directory / "hook.py").write_text(HOOK)
    bundle_in(
        workspace,
        "quick",
        parent="original",
        patch=[patch],
        plugin=[{"module": "hook", "file": "hook.py"}],
        engaged=[{"kind": "receipt", "pattern": "hook:delays"}, {"kind": "log_regex", "pattern": "ready to roll"}],
    )
    return workspace, run_round(make_plan(workspace, "quick", Options()), Watcher())


@pytest.mark.xdist_group("patched")
def test_a_patch_that_makes_the_server_faster_is_improved_and_proven_to_have_run(
    patched: tuple[Workspace, Round],
) -> None:
    """The replaced module, the plugin, its own receipt and a log line."""
    _, round_ = patched

    assert ("passed", "4 proofs found, in 1 of the server's processes") == gate(round_, "engaged")
    assert round_.verdict is not None
    assert "improved" == round_.verdict.outcome
    assert {"file:loop/fake_server/delays.py", "plugin:hook", "hook:delays"} == {
        receipt.name for receipt in round_.sessions[1].receipts
    }
    assert () == round_.sessions[0].receipts


@pytest.mark.xdist_group("patched")
def test_what_was_measured_is_what_ships(patched: tuple[Workspace, Round], tmp_path: Path) -> None:
    """Its files lie beside it, and a bundle that stands on it has them too."""
    shutil.copytree(patched[0].root, tmp_path / "copy")
    workspace = find_workspace(tmp_path / "copy")
    (round_,) = Ledger(workspace.ledger).read_all()
    confirmed(workspace, round_)

    move = plan_promotion(workspace, round_)
    pointer = carry_out(workspace, move)

    directory = workspace.root / pointer.devices["cpu"].directory
    assert round_.candidate == read_effective(directory)
    assert round_.candidate.content.files == {path.name for path in (directory / "files").iterdir()}
    assert "+replaced loop/fake_server/delays.py by" in move.preview()
    bundle_in(workspace, "next", parent="shipped", args={"inert_number": 2})
    engine = load_engine(workspace, None)
    assert round_.candidate.content.replaced == load_arm(workspace, engine, "next", "cpu").effective.content.replaced
    shutil.rmtree(workspace.candidates / "quick")  # what ships needs it no longer
    assert round_.candidate == load_arm(workspace, engine, "shipped", "cpu").effective


@pytest.mark.xdist_group("patched")
def test_code_that_was_edited_after_its_round_does_not_ship(patched: tuple[Workspace, Round], tmp_path: Path) -> None:
    """Its hash is another."""
    shutil.copytree(patched[0].root, tmp_path / "copy")
    workspace = find_workspace(tmp_path / "copy")
    (round_,) = Ledger(workspace.ledger).read_all()
    (workspace.candidates / "quick" / "hook.py").write_text(HOOK + "# edited\n")

    with pytest.raises(InputError, match="candidates/quick was changed after"):
        plan_promotion(workspace, round_)


def test_a_plugin_that_raises_has_no_effect_and_is_quoted(workspace: Workspace, run: Run) -> None:
    """The server only logs it and serves without."""
    (workspace.candidates / "limps").mkdir()
    (workspace.candidates / "limps" / "bad.py").write_text(RAISING)
    bundle_in(workspace, "limps", plugin=[{"module": "bad", "file": "bad.py"}])

    round_ = run("limps")

    assert round_.verdict is not None
    assert ("no_change", "no_effect") == (round_.verdict.outcome, round_.verdict.reason)
    assert "plugin:bad failed in process MainProcess: RuntimeError: no such kernel" in gate(round_, "engaged")[1]
    assert 1 == len(round_.sessions[1].measurements)  # nothing was timed


def test_a_module_that_nobody_imports_has_no_effect(workspace: Workspace, run: Run) -> None:
    """The change is in place, and nothing of it runs."""
    (workspace.candidates / "idle").mkdir()
    (workspace.candidates / "idle" / "idle.py").write_text("FAST = True\n")
    bundle_in(workspace, "idle", overlay=[{"package": "loop", "path": "fake_server/idle.py", "file": "idle.py"}])

    round_ = run("idle")

    assert ("refused", "B shows nothing of loop/fake_server/idle.py") == gate(round_, "engaged")


def test_code_that_does_not_fit_is_refused_with_the_bundle_to_mend(workspace: Workspace) -> None:
    """Before anything starts."""
    patch = patch_of(workspace.candidates / "old", lambda text: text.replace("1e3", "2e3"))
    bundle_in(workspace, "old", patch=[{**patch, "pre_sha256": {"fake_server/delays.py": "0" * 64}}])

    with pytest.raises(BundleError, match=r"old: p\.diff: loop/fake_server/delays\.py as installed") as refusal:
        make_plan(workspace, "old", Options())

    assert "mend candidates/old/bundle.toml" in refusal.value.next
