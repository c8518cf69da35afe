"""Rounds of code bundles on the fake engine: what ran is measured, what did not run is refused."""

import difflib
import shutil
from pathlib import Path
from typing import Any

import pytest

import loop
from loop.elements import Engaged as Declared
from loop.elements import LoadedPlugin, Replaced, Transform
from loop.engagement import Receipt
from loop.errors import InputError
from loop.gates.config import Config
from loop.gates.engaged import Engaged as Gate
from loop.judge import Verdict
from loop.ledger import Ledger, Round
from loop.plan import Options, make_plan
from loop.promotion import carry_out, plan_promotion, plan_rollback
from loop.run import run_round
from loop.session import Session
from loop.shipped import read
from loop.watch import Watcher
from loop.workspace import Workspace, find_workspace
from tests.brackets import bracket, effective, same_session
from tests.conftest import bundle_in, make_workspace
from tests.test_flattening import PLUGIN, sha

PACKAGE = Path(loop.__file__).parent
DELAYS = "fake_server/delays.py"
FACTOR = "self._tpot_s: float = session_factor * args.tpot_ms / 1e3"
HOOKS = """import loop_receipts

def activate():
    from loop.fake_server import delays

    asked = delays.Delays.for_request

    def for_request(self, number, num_uncached_tokens):
        loop_receipts.fired("hooks:for_request")
        return asked(self, number, num_uncached_tokens)

    delays.Delays.for_request = for_request
"""


def code_in(workspace: Workspace, bundle_id: str, files: dict[str, str], **tables: Any) -> str:
    """A bundle with these files and tables."""
    directory = workspace.candidates / bundle_id
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return bundle_in(workspace, bundle_id, parent="original", **tables)


def faster(workspace: Workspace) -> str:
    """A bundle that patches the fake server to a quarter of its delays, with a plugin that says when it is asked."""
    old = (PACKAGE / DELAYS).read_text()
    new = old.replace(FACTOR, f"{FACTOR} / 4").replace("args.ttft_ms / 1e3", "args.ttft_ms / 4e3")
    lines = (text.splitlines(keepends=True) for text in (old, new))
    diff = difflib.unified_diff(*lines, f"a/{DELAYS}", f"b/{DELAYS}")
    return code_in(
        workspace,
        "faster",
        {"p.diff": "".join(diff), "hooks.py": HOOKS},
        patch=[{"package": "loop", "file": "p.diff", "pre_sha256": {DELAYS: sha(old)}}],
        plugin=[{"module": "hooks", "file": "hooks.py"}],
        engaged=[
            {"kind": "receipt", "pattern": "^hooks:for_request$"},
            {"kind": "log_regex", "pattern": "fired up and ready"},
            {"kind": "server_info", "pattern": "inert_number=0"},
        ],
    )


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Workspace, Round]:
    """A workspace with a round of `faster`. Only to be looked at, or copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOP_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        workspace = make_workspace(tmp_path_factory.mktemp("patched") / "workspace", model)
        bundle_in(workspace, "original", args={"tpot_ms": 12.0, "ttft_ms": 30.0})
        return workspace, run_round(make_plan(workspace, faster(workspace), Options(extend=False)), Watcher())


def result_of(round_: Round) -> tuple[str, str]:
    """What the gate found: outcome and text."""
    (found,) = (result for result in round_.gates if result.gate == "engaged")
    return found.outcome, found.text


def test_a_patch_that_makes_it_faster_is_engaged_and_measured(patched: tuple[Workspace, Round]) -> None:
    """The candidate's processes loaded the patched file; the baseline's session has no receipts."""
    _, round_ = patched

    assert ("passed", "5 proofs in every session that the code ran") == result_of(round_)
    a, b = round_.sessions[0], round_.sessions[1]
    assert () == a.receipts
    assert {
        "witness": "watching",
        f"overlay:loop/{DELAYS}": "loaded",
        "plugin:hooks": "activated",
        "hooks:for_request": "fired",
    } == {receipt.name: receipt.status for receipt in b.receipts}
    overall = next(item for item in round_.comparisons if item.scope == "all")
    assert overall.effect_pct > 0


def test_a_round_keeps_the_files_that_were_measured(patched: tuple[Workspace, Round]) -> None:
    """By hash, in its raw directory."""
    workspace, round_ = patched

    directory = Ledger(workspace.ledger).raw_of(round_.id) / "bundle-B" / "files"

    assert list(round_.candidate.content.file_hashes) == sorted(path.name for path in directory.iterdir())
    assert round_ == Ledger(workspace.ledger).read(round_.id)


@pytest.fixture
def won(patched: tuple[Workspace, Round], tmp_path: Path) -> tuple[Workspace, Round]:
    """A copy, and its round with a confirmed win, whatever this machine made of it."""
    shutil.copytree(patched[0].root, tmp_path / "copy")
    workspace, round_ = find_workspace(tmp_path / "copy"), patched[1]
    verdict = Verdict(outcome="improved", reason="measured", refused_by=(), text="a test")
    win = round_.model_copy(update={"verdict": verdict})
    ledger = Ledger(workspace.ledger)
    ledger.write(win.model_copy(update={"id": ledger.new_id(), "purpose": "confirmation", "confirms": round_.id}))
    return workspace, win


@pytest.mark.parametrize("raw", ["kept", "gone"])
def test_promotion_ships_the_files_with_the_bundle(won: tuple[Workspace, Round], raw: str) -> None:
    """Without raw data they come from the bundle itself; a child of what is shipped builds on them."""
    workspace, round_ = won
    hashes = list(round_.candidate.content.file_hashes)
    if raw == "gone":
        shutil.rmtree(Ledger(workspace.ledger).raw_of(round_.id))

    move = plan_promotion(workspace, round_)
    carry_out(workspace, move)

    entry = read(workspace).devices[round_.host.device]
    assert hashes == sorted(path.name for path in (workspace.root / entry.directory / "files").iterdir())
    assert f"+replaces loop/{DELAYS} by " in move.preview()
    shutil.rmtree(workspace.candidates / "faster")
    child = make_plan(workspace, bundle_in(workspace, "child", parent="shipped", args={"inert_number": 1}), Options())
    assert round_.candidate.content.replaced == child.candidate.content.replaced
    assert set(hashes) <= set(child.files)
    carry_out(workspace, plan_rollback(workspace, round_.host.device))
    assert {} == read(workspace).devices


def test_a_file_that_was_edited_after_the_round_stops_the_promotion(won: tuple[Workspace, Round]) -> None:
    """What ships is what was measured."""
    workspace, round_ = won
    (workspace.candidates / "faster" / "hooks.py").write_text(f"{HOOKS}# one more thing\n")

    with pytest.raises(InputError, match="candidates/faster was changed after"):
        plan_promotion(workspace, round_)


@pytest.mark.parametrize(
    ("text", "args", "expected"),
    [
        ("def activate():\n    raise RuntimeError('no such hook')\n", {}, "RuntimeError: no such hook"),
        (PLUGIN, {"fault": ["ignore_plugins"]}, "the plugin hooks was not activated in any process"),
    ],
)
def test_a_plugin_that_does_not_run_is_refused_before_it_is_timed(
    workspace: Workspace, text: str, args: dict[str, Any], expected: str
) -> None:
    """The server limps on without it, and is as fast as the baseline."""
    code_in(workspace, "idea", {"hooks.py": text}, args=args, plugin=[{"module": "hooks", "file": "hooks.py"}])

    round_ = run_round(make_plan(workspace, "idea", Options(extend=False)), Watcher())

    assert round_.verdict is not None
    assert ("no_change", "no_effect", ("engaged",)) == (
        round_.verdict.outcome,
        round_.verdict.reason,
        round_.verdict.refused_by,
    )
    assert expected in round_.verdict.text
    assert () == round_.sessions[1].measured("timed")


# the gate, on sessions built by hand


def gated(root: Path, sessions: dict[str, tuple[Receipt, ...]], **parts: Any) -> tuple[str, str, str]:
    """(outcome, reason, text) for a candidate with these parts, and for sessions with these receipts."""
    plain = effective("idea")
    content = plain.content.model_copy(update=parts)
    candidate = plain.model_copy(update={"content": content, "sha256": content.digest()})
    found: list[Session] = []
    for label, receipts in sessions.items():
        session = same_session(root, label)
        found.append(session.model_copy(update={"receipts": receipts}))
    (root / "server.log").write_text("loaded\nhook is on\n")
    result = Gate().check(bracket(root, found, candidate=candidate))
    return result.outcome, result.reason, result.text


def receipt(name: str, status: str, detail: str = "") -> Receipt:
    """Of one process."""
    return Receipt(name=name, status=status, role="main", num_processes=1, detail=detail)


def test_a_bundle_without_code_has_nothing_to_prove(tmp_path: Path) -> None:
    """As every round before there was code."""
    assert ("passed", "engaged", "no code to prove") == gated(tmp_path, {"A1": (), "B": (), "A2": ()})


HOOKED = (LoadedPlugin(module="hooks", entry="activate", sha256="0" * 64),)
ON = receipt("plugin:hooks", "activated")


@pytest.mark.parametrize(
    ("parts", "receipts", "expected"),
    [
        ({"plugins": HOOKED}, (ON,), ("passed", "1 proof in every session")),
        ({"plugins": HOOKED}, (), ("refused", "B: the plugin hooks was not activated in any process")),
        (
            {"plugins": HOOKED},
            (ON, receipt("plugin:hooks", "failed", "a\nb\n  c\nd\ne: f\n")),
            ("refused", "B: plugin:hooks failed in main: b | c | d | e: f"),
        ),
        (
            {"replaced": (Replaced(package="p", path="x.py", pre_sha256=None, post_sha256="0" * 64),)},
            (receipt("overlay:p/x.py", "elsewhere", "loaded from /y"),),
            ("refused", "B: overlay:p/x.py elsewhere in main: loaded from /y"),
        ),
        (
            {"replaced": (Replaced(package="p", path="k.cu", pre_sha256=None, post_sha256="0" * 64),)},
            (),
            ("refused", "nothing can prove that the code ran: no replaced file is a module; declare an [[engaged]]"),
        ),
        (
            {"transforms": (Transform(sha256="ab" * 32, entry="transform", timeout_s=1, memory_gb=1),)},
            (receipt(f"model:{'ab' * 8}", "applied"),),
            ("passed", "1 proof"),
        ),
        (
            {"engaged": (Declared(kind="receipt", pattern="^mine"),)},
            (receipt("mine:1", "fired"),),
            ("passed", "1 proof"),
        ),
        ({"engaged": (Declared(kind="receipt", pattern="^mine"),)}, (ON,), ("refused", "no receipt '^mine' was seen")),
        ({"engaged": (Declared(kind="log_regex", pattern="hook is o[nf]"),)}, (), ("passed", "1 proof")),
        ({"engaged": (Declared(kind="log_regex", pattern="off"),)}, (), ("refused", "B: no log_regex 'off' was seen")),
        ({"engaged": (Declared(kind="server_info", pattern="inert_number=0"),)}, (), ("passed", "1 proof")),
        ({"engaged": (Declared(kind="server_info", pattern="inert_number=1"),)}, (), ("refused", "no server_info")),
        (
            {"engaged": (Declared(kind="kernel", pattern="fused"),), "plugins": HOOKED},
            (ON,),
            ("passed", "kernels fused are not looked for: that needs a profile"),
        ),
        ({"engaged": (Declared(kind="kernel", pattern="fused"),)}, (), ("uninformative", "nothing proves that")),
    ],
)
def test_what_is_proven_and_what_is_not(
    tmp_path: Path, parts: dict[str, Any], receipts: tuple[Receipt, ...], expected: tuple[str, str]
) -> None:
    """In one sentence."""
    outcome, reason, text = gated(tmp_path, {"A1": (), "B": receipts, "A2": ()}, **parts)

    assert expected[0] == outcome
    assert expected[1] in text
    assert ("no_effect" == reason) == (outcome == "refused")


def test_only_a_model_transform_may_change_where_the_model_is(tmp_path: Path) -> None:
    """What is in it, the launcher has proven."""
    infos = {"A1": "/m", "B": "/runtime/m", "A2": "/m"}
    sessions = [same_session(tmp_path, label, info={"model_path": path}) for label, path in infos.items()]
    plain = effective("idea")
    content = plain.content.model_copy(
        update={"transforms": (Transform(sha256="0" * 64, entry="transform", timeout_s=1, memory_gb=1),)}
    )
    transformed = plain.model_copy(update={"content": content, "sha256": content.digest()})

    found = [Config().check(bracket(tmp_path, sessions, candidate=arm)) for arm in (plain, transformed)]

    assert ["unasked_config", "config"] == [result.reason for result in found]
    assert ["refused", "passed"] == [result.outcome for result in found]


def test_every_session_of_the_candidate_must_prove_it(tmp_path: Path) -> None:
    """Not only the first."""
    found = gated(tmp_path, {"A1": (), "B1": (ON,), "B2": (), "A2": ()}, plugins=HOOKED)

    assert ("refused", "no_effect", "B2: the plugin hooks was not activated in any process") == found


def test_a_baseline_whose_code_did_not_run_makes_the_round_invalid(tmp_path: Path) -> None:
    """Nothing was wrong with the candidate."""
    plain = effective("shipped")
    content = plain.content.model_copy(update={"plugins": HOOKED})
    baseline = plain.model_copy(update={"content": content, "sha256": content.digest()})
    sessions = [same_session(tmp_path, label) for label in ("A1", "B", "A2")]

    result = Gate().check(bracket(tmp_path, sessions, baseline=baseline))

    assert ("uninformative", "baseline_not_engaged") == (result.outcome, result.reason)
