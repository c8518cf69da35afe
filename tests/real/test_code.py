"""A bundle's code in a real SGLang: every process of the server runs the patched file and loads the plugin."""

import difflib
import hashlib
import sys
from pathlib import Path

import httpx
import pytest
import tomlkit

from loop.engagement import read_receipts
from loop.engines.sglang import SGLang
from loop.flattening import flatten
from loop.host import free_port
from loop.server import Server
from loop.watch import Watcher
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(900)]

PATH = "srt/managers/scheduler.py"
ANCHOR = "    # Load plugins so hooks can override Scheduler and its dependencies.\n    load_plugins()\n"
HOOKS = """import loop_receipts
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def activate():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run", seen, HookType.BEFORE)

def seen(*args, **kwargs):
    loop_receipts.fired("hooks:next_batch")
"""


def test_every_process_runs_the_patched_file_and_loads_the_plugin(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main, scheduler and detokenizer; a hook fires where it is called, and the installed package is untouched."""
    monkeypatch.setenv("LOOP_RUNTIME_DIR", str(tmp_path / "runtime"))
    engine = SGLang(python=sys.executable)
    package = Path(str(engine.installed(["sglang"])["sglang"]))
    old = (package / PATH).read_text()
    new = old.replace(ANCHOR, f'{ANCHOR}    print("patched scheduler starts", flush=True)\n')
    lines = (text.splitlines(keepends=True) for text in (old, new))
    pre_sha256 = hashlib.sha256(old.encode()).hexdigest()
    directory = tmp_path / "candidates" / "hello"
    directory.mkdir(parents=True)
    (directory / "p.diff").write_text("".join(difflib.unified_diff(*lines, f"a/{PATH}", f"b/{PATH}")))
    (directory / "hooks.py").write_text(HOOKS)
    document = {
        "schema": "loop.bundle/1",
        "hypothesis": "a test",
        "patch": [{"package": "sglang", "file": "p.diff", "pre_sha256": {PATH: pre_sha256}}],
        "plugin": [{"module": "hooks", "file": "hooks.py"}],
    }
    (directory / "bundle.toml").write_text(tomlkit.dumps(document))
    flattened = flatten(
        tmp_path / "candidates",
        "hello",
        engine="sglang",
        shipped=None,
        original="original",
        installed=engine.installed,
    )
    engine.effective(flattened).write(tmp_path / "arm", flattened.files)
    server = Server(
        engine,
        launcher=REPOSITORY / "launch_server.sh",
        bundle=tmp_path / "arm",
        model=model,
        port=free_port(),
        mark="R000001-code/B",
        log=tmp_path / "raw" / "server.log",
        receipts=tmp_path / "raw" / "receipts.jsonl",
    )
    with server:
        server.wait_ready(300, Watcher())
        asked = {"text": "hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
        assert 200 == httpx.post(f"{server.url}/generate", json=asked, timeout=60).status_code

    assert "patched scheduler starts" in server.log.read_text()
    processes = {"main", "run_scheduler_process", "run_detokenizer_process"}
    expected = {(name, role) for name in (f"overlay:sglang/{PATH}", "plugin:hooks", "witness") for role in processes}
    found = read_receipts(tmp_path / "raw" / "receipts.jsonl")
    assert expected | {("hooks:next_batch", "run_scheduler_process")} == {(item.name, item.role) for item in found}
    assert {"watching", "loaded", "activated", "fired"} == {item.status for item in found}
    assert old == (package / PATH).read_text()
