"""What the launcher does with a bundle's code: built once, proven before every use, and never in safe mode."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop import starter
from loop.content import Content
from loop.effective import Effective
from loop.elements import BuiltKernel, LoadedPlugin, Replaced, Transform
from loop.engagement import Receipt, read_receipts
from tests.brackets import effective
from tests.launching import launch, message, teller

GROUP = "loop.test.plugins"
SERVE = f"""import importlib.metadata as m, json, os, sys
for point in m.entry_points(group="{GROUP}"):
    try:
        point.load()()
    except Exception as problem:
        print(problem, file=sys.stderr)
import engine.late, engine.x
told = {{"argv": sys.argv[1:], "env": dict(os.environ), "x": engine.x.VALUE, "file": engine.x.__file__}}
print(json.dumps(told))
"""
OLD, NEW, NEWER = "VALUE = 1\n", "VALUE = 2\n", "VALUE = 3\n"
PLUGIN = "import loop_receipts\ndef activate():\n    loop_receipts.fired('mine')\n    loop_receipts.fired('mine')\n"
RAISING = "def activate():\n    raise RuntimeError('no such hook')\n"


class Workspace:
    """A workspace whose original serves nothing, a package called `engine`, and arms with code."""

    def __init__(self, base: Path) -> None:
        self.root = base / "workspace"
        list(starter.init(self.root, synthetic=None, seed=0, model_dir=None))
        teller("original").write(self.root / "candidates" / "original")
        self.runtime = base / "runtime"
        self.site = base / "site"
        self.arm = base / "arm"
        self.receipts_file = base / "receipts.jsonl"
        for name, text in {"__init__.py": "", "x.py": OLD, "late.py": "", "data.bin": "0" * 100_000}.items():
            (self.site / "engine").mkdir(parents=True, exist_ok=True)
            (self.site / "engine" / name).write_text(text)

    def write(self, files: dict[str, str], **parts: Any) -> Effective:
        """An arm with this code; `files` are texts by a name that stands for their hash."""
        fields = {"engine": "test", "args": {}, "env": {}, "numerics": "exact", "applies_to": {}, **parts}
        content = Content.model_validate(fields)
        command = ("-c", SERVE, "{MODEL_PATH}", "{MODEL_NAME}")
        made = effective("idea", content=content, sha256=content.digest(), command=command, plugin_group=GROUP)
        made.write(self.arm, {sha(text): text.encode() for text in files.values()})
        return made

    def patched(self, **parts: Any) -> Effective:
        """An arm that replaces `engine/x.py`."""
        files = {"x": NEW, **parts.pop("files", {})}
        item = Replaced(package="engine", path="x.py", pre_sha256=sha(OLD), post_sha256=sha(NEW))
        return self.write(files, replaced=(item,), **parts)

    @property
    def settings(self) -> dict[str, str | None]:
        """The launcher's environment."""
        return {
            "LOOP_BUNDLE": str(self.arm),
            "LOOP_RUNTIME_DIR": str(self.runtime),
            "LOOP_RECEIPTS": str(self.receipts_file),
            "PYTHONPATH": str(self.site),
        }

    def launch(self, **variables: str | None) -> Any:
        """What the server of the arm tells."""
        return launch(self.root, **{**self.settings, **variables})

    def refusal(self, **variables: str | None) -> str:
        """What is said instead of starting."""
        return message(self.root, **{**self.settings, **variables})

    def receipts(self) -> dict[str, str]:
        """Name → status."""
        return {receipt.name: receipt.status for receipt in read_receipts(self.receipts_file)}

    def built(self, kind: str) -> list[Path]:
        """What lies in the runtime directory."""
        return sorted((self.runtime / kind).glob("*")) if (self.runtime / kind).is_dir() else []


@pytest.fixture
def place(tmp_path: Path) -> Workspace:
    """A workspace of one's own."""
    return Workspace(tmp_path)


def sha(text: str) -> str:
    """Hex sha256."""
    return hashlib.sha256(text.encode()).hexdigest()


def hooks(text: str = PLUGIN, module: str = "hooks") -> LoadedPlugin:
    """A plugin of this text."""
    return LoadedPlugin(module=module, entry="activate", sha256=sha(text))


# overlays


def test_the_replaced_file_is_what_runs_and_the_witness_says_so(place: Workspace) -> None:
    """From a copy of the whole package; the installed one is as it was."""
    place.patched()

    told = place.launch()

    (overlay,) = place.built("overlays")
    assert (2, f"{overlay}/engine/x.py") == (told["x"], told["file"])
    assert OLD == (place.site / "engine" / "x.py").read_text()
    assert {"witness": "watching", "overlay:engine/x.py": "loaded"} == place.receipts()
    assert (overlay / "engine" / "data.bin").is_file()


def test_a_module_that_was_loaded_before_the_witness_is_testified_for_too(place: Workspace) -> None:
    """A spawned process has imported what it runs before it loads plugins."""
    made = place.patched()
    command = ("-c", f"import engine.x\n{SERVE}", "{MODEL_PATH}", "{MODEL_NAME}")
    made.model_copy(update={"command": command}).sealed().write(place.arm, {sha(NEW): NEW.encode()})

    place.launch()

    assert "loaded" == place.receipts()["overlay:engine/x.py"]


def test_a_module_from_elsewhere_is_told_on(place: Workspace) -> None:
    """Something else was first on the path."""
    made = place.patched()
    command = ("-c", f"import sys; sys.path.insert(0, {str(place.site)!r})\n{SERVE}", "{MODEL_PATH}", "{MODEL_NAME}")
    made.model_copy(update={"command": command}).sealed().write(place.arm, {sha(NEW): NEW.encode()})

    assert 1 == place.launch()["x"]
    assert "elsewhere" == place.receipts()["overlay:engine/x.py"]


def test_another_installed_file_than_was_measured_is_refused(place: Workspace) -> None:
    """With the file, both hashes and the way out, and the way out works."""
    place.patched()
    (place.site / "engine" / "x.py").write_text(NEWER)

    said = place.refusal()

    assert (
        f"{place.site}/engine/x.py is not the file that was measured: it hashes to {sha('VALUE = 3' + chr(10))}" in said
    )
    assert f"expected is {sha(OLD)}; LOOP_NO_OVERLAY=1 serves the original configuration; measure" in said
    assert [] == place.built("overlays")
    assert "pid" in place.launch(LOOP_NO_OVERLAY="1")


def test_safe_mode_serves_no_code_even_if_the_original_has_some(place: Workspace) -> None:
    """Nothing is built, nothing is on the path."""
    made = place.patched()
    made.write(place.root / "candidates" / "original", {sha(NEW): NEW.encode()})

    assert 1 == place.launch(LOOP_NO_OVERLAY="1")["x"]
    assert 2 == place.launch(LOOP_BUNDLE=None)["x"]


def damage_change(overlay: Path) -> None:
    """Another content, of the same size."""
    (overlay / "engine" / "late.py").write_text("# late\n")


def damage_remove(overlay: Path) -> None:
    """A file less."""
    (overlay / "engine" / "late.py").unlink()


def damage_add(overlay: Path) -> None:
    """A module more."""
    (overlay / "engine" / "json.py").write_text("")


def damage_code(overlay: Path) -> None:
    """Byte code that says something else than its source."""
    (code,) = (overlay / "engine" / "__pycache__").glob("x.*.pyc")
    code.write_bytes(code.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_change, "engine/late.py was changed after it was built"),
        (damage_remove, "engine/late.py is missing"),
        (damage_add, "engine/json.py was added after it was built"),
        (damage_code, ".pyc was changed after it was built"),
    ],
)
def test_a_damaged_overlay_is_built_anew_once(place: Workspace, damage: Callable[[Path], None], expected: str) -> None:
    """Beside the damaged one, which may be in use; then it is refused, with the file."""
    place.patched()
    place.launch()
    (overlay,) = place.built("overlays")
    damage(overlay)

    done = launch(place.root, check=False, **place.settings)

    assert 0 == done.returncode
    assert 2 == json.loads(done.stdout)["x"]
    assert expected in done.stderr
    damage(overlay.with_name(f"{overlay.name}-again"))
    said = place.refusal()
    assert f"{expected}; remove {overlay} and {overlay.name}-again beside it; LOOP_NO_OVERLAY=1" in said


def test_a_change_of_the_installed_package_elsewhere_is_noticed(place: Workspace) -> None:
    """The copy would serve what nobody has installed any more."""
    place.patched()
    place.launch()
    (place.site / "engine" / "late.py").write_text("# mended\n")

    place.launch()

    assert {"", "# mended\n"} == {(path / "engine" / "late.py").read_text() for path in place.built("overlays")}


def test_byte_code_that_nobody_vouches_for_is_removed(place: Workspace) -> None:
    """Python would prefer it to the source."""
    place.patched()
    place.launch()
    (overlay,) = place.built("overlays")
    stray = overlay / "engine" / "__pycache__" / "x.cpython-399.pyc"
    stray.write_bytes(b"x")

    place.launch()

    assert not stray.exists()
    assert [overlay] == place.built("overlays")


def test_two_launches_at_once_agree(place: Workspace) -> None:
    """Neither sees half of what the other builds."""
    place.patched()
    given = {name: value for name, value in place.settings.items() if value is not None}
    env = {**os.environ, **given, "PORT": "1", "MODEL_PATH": str(place.site), "LOOP_PYTHON": sys.executable}
    env |= {"LOOP_DEVICE": "cpu"}
    command = ["bash", str(place.root / "launch_server.sh")]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    told = [json.loads(process.communicate(timeout=60)[0]) for process in both]

    assert [2, 2] == [item["x"] for item in told]
    assert 1 == len(place.built("overlays"))
    assert [] == list((place.runtime / "overlays").glob(".*"))


def test_what_was_built_beforehand_is_not_written_to(place: Workspace) -> None:
    """As an image has it, read-only."""
    place.patched(plugins=(hooks(),), files={"hooks": PLUGIN})
    place.launch()
    paths = [place.runtime, *place.runtime.rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in paths}
    for path in reversed(paths):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        told = place.launch()
        after = {path: path.stat().st_mtime_ns for path in [place.runtime, *place.runtime.rglob("*")]}
    finally:
        for path in paths:
            path.chmod(0o755)

    assert 2 == told["x"]
    assert before == after


def test_a_full_disk_leaves_nothing_half_built_and_says_so(place: Workspace) -> None:
    """A limit on the size of files stands for it."""
    place.patched()
    limited = place.root / "limited.sh"
    limited.write_text('ulimit -f 16\nexec bash "$(dirname "$0")/launch.sh"\n')
    (place.root / "launch_server.sh").rename(place.root / "launch.sh")
    limited.rename(place.root / "launch_server.sh")

    said = place.refusal()

    assert "engine/data.bin cannot be written: File too large; make room, or set LOOP_RUNTIME_DIR to another" in said
    assert [] == list((place.runtime / "overlays").iterdir())


def test_an_edited_file_of_the_bundle_is_not_served(place: Workspace) -> None:
    """Its name is its hash."""
    place.patched()
    (file,) = (place.arm / "files").iterdir()
    file.write_text("VALUE = 9\n")

    assert f"{file} was edited after it was written; LOOP_BUNDLE names it" in place.refusal()


# plugins


def test_a_plugin_leaves_its_receipt_and_may_leave_its_own(place: Workspace) -> None:
    """Each once per process; the caller's path is kept."""
    place.write({"hooks": PLUGIN}, plugins=(hooks(),))

    told = place.launch()

    expected = [("witness", "watching"), ("mine", "fired"), ("plugin:hooks", "activated")]
    found = read_receipts(place.receipts_file)
    assert expected == [(receipt.name, receipt.status) for receipt in found]
    assert [("main", 1)] * 3 == [(receipt.role, receipt.num_processes) for receipt in found]
    assert str(place.site) == told["env"]["PYTHONPATH"].split(os.pathsep)[-1]


def test_a_plugin_that_raises_says_where(place: Workspace) -> None:
    """The engine is told too, and decides whether to go on."""
    place.write({"hooks": RAISING}, plugins=(hooks(RAISING),))

    done = launch(place.root, check=False, **place.settings)

    assert "no such hook" in done.stderr
    (_, receipt) = read_receipts(place.receipts_file)
    assert ("plugin:hooks", "failed") == (receipt.name, receipt.status)
    assert receipt.detail.endswith("in activate\n    raise RuntimeError('no such hook')\nRuntimeError: no such hook\n")


def test_plugins_are_loaded_in_order_after_the_witness(place: Workspace) -> None:
    """The later one may build on the earlier one."""
    one, two = "def activate():\n    pass\n", "import sys\ndef activate():\n    assert 'first' in sys.modules\n"
    place.write({"a": one, "b": two}, plugins=(hooks(one, "first"), hooks(two, "second")))

    place.launch()

    assert ["witness", "plugin:first", "plugin:second"] == list(place.receipts())
    assert "activated" == place.receipts()["plugin:second"]


def test_production_keeps_receipts_in_its_runtime_directory(place: Workspace) -> None:
    """By process."""
    place.write({"hooks": PLUGIN}, plugins=(hooks(),))

    place.launch(LOOP_RECEIPTS=None)

    (file,) = place.built("receipts")
    assert "activated" in {receipt.status for receipt in read_receipts(file)}


@pytest.mark.parametrize(("named", "expected"), [("a", "a,loop_witness,loop_hooks"), (None, None)])
def test_a_whitelist_of_plugins_is_extended(place: Workspace, named: str | None, expected: str | None) -> None:
    """It would silently leave the bundle's out; where there is none, all are loaded."""
    made = place.write({"hooks": PLUGIN}, plugins=(hooks(),))
    listed = made.model_copy(update={"plugin_group": "sglang.srt.plugins"}).sealed()
    listed.write(place.arm, {sha(PLUGIN): PLUGIN.encode()})

    assert expected == place.launch(SGLANG_PLUGINS=named)["env"].get("SGLANG_PLUGINS")


def test_a_patched_main_module_is_testified_for(place: Workspace) -> None:
    """`python -m` loads it under another name than its own."""
    main = f"{SERVE}# patched\n"
    (place.site / "engine" / "__main__.py").write_text("")
    item = Replaced(package="engine", path="__main__.py", pre_sha256=sha(""), post_sha256=sha(main))
    made = place.write({"main": main}, replaced=(item,))
    made.model_copy(update={"command": ("-m", "engine")}).sealed().write(place.arm, {sha(main): main.encode()})

    place.launch()

    assert "loaded" == place.receipts()["overlay:engine/__main__.py"]


def test_caches_of_compilers_are_the_bundles_own(place: Workspace) -> None:
    """Unless the bundle says where; what the caller says does not count."""
    own = {"TRITON_CACHE_DIR": "/elsewhere"}
    made = place.write({"hooks": PLUGIN}, plugins=(hooks(),), env=own)

    env = place.launch(CUDA_CACHE_PATH="/shared")["env"]

    caches = place.runtime / "caches" / made.sha256[:16]
    assert "/elsewhere" == env["TRITON_CACHE_DIR"]
    assert (str(caches / "cuda"), str(caches / "sglang")) == (env["CUDA_CACHE_PATH"], env["SGLANG_CACHE_DIR"])


# kernels


def kernel(build: tuple[str, ...], **fields: Any) -> BuiltKernel:
    """A kernel built by these arguments."""
    defaults = {
        "name": "fused",
        "language": "cuda",
        "sources": {"csrc/fused.cu": sha("void f();\n")},
        "module": "dispatch",
        "module_sha256": sha(PLUGIN),
        "entry": "activate",
        "build": build,
        "output": None,
        "fallback": "refuse",
    }
    return BuiltKernel.model_validate({**defaults, **fields})


COPY = ("{python}", "-c", "import shutil; print('building'); shutil.copy('csrc/fused.cu', '{output}')")
FAIL = ("{python}", "-c", "print('error: no such register'); raise SystemExit(1)")
KERNEL_FILES = {"source": "void f();\n", "module": PLUGIN}


def test_a_kernel_is_built_once_and_its_module_loaded(place: Workspace) -> None:
    """The module finds it by a variable."""
    place.write(KERNEL_FILES, kernels=(kernel(COPY),))

    first, second = place.launch()["env"]["LOOP_KERNEL_FUSED"], place.launch()["env"]["LOOP_KERNEL_FUSED"]

    assert first == second
    assert "void f();\n" == Path(first).read_text()
    assert "activated" == place.receipts()["kernel:fused"]
    assert "building\n" == next((place.runtime / "kernels").glob("*.build.log")).read_text()


def test_a_kernel_that_cannot_be_built_stops_the_launch_with_the_end_of_its_log(place: Workspace) -> None:
    """And with the way out."""
    place.write(KERNEL_FILES, kernels=(kernel(FAIL),))

    said = place.refusal()

    assert "kernel fused: " in said
    assert "ended with exit code 1; the end of " in said
    assert "error: no such register; LOOP_NO_OVERLAY=1 serves the original configuration" in said


@pytest.mark.parametrize("build", [FAIL, ("no-such-compiler",), ("{python}", "-c", "pass")])
def test_a_kernel_that_may_fall_back_is_left_out_and_says_so(place: Workspace, build: tuple[str, ...]) -> None:
    """Its module is not loaded."""
    place.write(KERNEL_FILES, kernels=(kernel(build, fallback="original"),))

    assert "LOOP_KERNEL_FUSED" not in place.launch()["env"]
    assert "fallback" == place.receipts()["kernel:fused"]
    assert "mine" not in place.receipts()


def test_a_triton_source_is_imported_once_to_see_that_it_can_be(place: Workspace) -> None:
    """Its directory is what the module gets."""
    text = "value = 1\n"
    made = kernel((), language="triton", sources={"k.py": sha(text)})
    place.write({**KERNEL_FILES, "k": text}, kernels=(made,))

    assert (Path(place.launch()["env"]["LOOP_KERNEL_FUSED"]) / "k.py").is_file()


# transforms


CONFIG = {"architectures": ["A"], "hidden_size": 8, "torch_dtype": "bfloat16"}
COPY_MODEL = """import json, shutil
def transform(source, target):
    shutil.copytree(source, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    CHANGE
    (target / "config.json").write_text(json.dumps(config))
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint as far as a transform is concerned."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\0" * 100)
    return directory


def transforming(place: Workspace, script: str, **fields: Any) -> Transform:
    """An arm with this transform."""
    made = Transform.model_validate(
        {"sha256": sha(script), "entry": "transform", "timeout_s": 30, "memory_gb": 4, **fields}
    )
    place.write({"script": script}, transforms=(made,))
    return made


def test_a_transformed_model_is_served_under_the_old_name(place: Workspace, checkpoint: Path) -> None:
    """Built once, with a receipt that has its hash; the input is as it was."""
    made = transforming(place, COPY_MODEL.replace("CHANGE", "config['torch_dtype'] = 'float32'; print('done')"))

    first, second = (place.launch(MODEL_PATH=str(checkpoint))["argv"] for _ in range(2))

    assert first == second
    assert str(checkpoint) == first[1]
    served = json.loads((Path(first[0]) / "config.json").read_text())
    assert {**CONFIG, "torch_dtype": "float32"} == served
    assert CONFIG == json.loads((checkpoint / "config.json").read_text())
    (receipt,) = (item for item in read_receipts(place.receipts_file) if item.name.startswith("model:"))
    assert f"model:{made.sha256[:16]}" == receipt.name
    assert (Path(first[0]).parent / "sha256").read_text() == receipt.detail
    (Path(first[0]) / "model.safetensors").write_bytes(b"\1" * 100)
    assert f"{first[0]} was changed after it was built; remove" in place.refusal(MODEL_PATH=str(checkpoint))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("config['hidden_size'] = 4", "makes another model: hidden_size was 8 in config.json, it is 4"),
        ("del config['architectures']", "makes another model: architectures was ['A'] in config.json, it is None"),
        ("(target / 'tokenizer.json').write_text('[]')", "the transform changes tokenizer.json: another tokenizer"),
        ("(source / 'model.safetensors').write_bytes(b'')", "the transform changed its input, "),
        ("(source / 'more').write_bytes(b'')", "/checkpoint/more; restore it"),
        ("raise ValueError('bad weights')", "ended with exit code 1: ValueError: bad weights; its log is"),
        ("import time; time.sleep(60)", "took more than 1 s"),
        ("x = bytearray(3 << 30)", "MemoryError"),
        (
            "import os; assert 'LOOP_BUNDLE' not in os.environ and not os.listdir(), 'x'; raise OSError('apart')",
            "apart",
        ),
    ],
)
def test_a_transform_that_goes_wrong_stops_the_launch(
    place: Workspace, checkpoint: Path, change: str, expected: str
) -> None:
    """With the reason, and nothing is kept of it."""
    transforming(place, COPY_MODEL.replace("CHANGE", change), timeout_s=1, memory_gb=1)

    assert expected in place.refusal(MODEL_PATH=str(checkpoint))
    assert [] == [path for path in place.built("models") if path.is_dir()]


def test_a_name_of_a_hub_cannot_be_transformed(place: Workspace) -> None:
    """There is nothing to read."""
    transforming(place, COPY_MODEL)

    assert "MODEL_PATH=Qwen/Qwen3-4B is not a directory, and the bundle transforms" in place.refusal(
        MODEL_PATH="Qwen/Qwen3-4B"
    )


# receipts


def test_receipts_of_several_processes_are_counted_and_damage_is_passed_over(tmp_path: Path) -> None:
    """The candidate's own code writes them."""
    line = {"pid": 1, "role": "main", "name": "a", "status": "fired", "detail": "x"}
    lines = [line, {**line, "pid": 2, "detail": "y"}, {**line, "role": "run_scheduler_process"}, {"pid": 3}, [], None]
    path = tmp_path / "receipts.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in lines) + "half a li")

    two, one = read_receipts(path)

    assert Receipt(name="a", status="fired", role="main", num_processes=2, detail="x") == two
    assert ("run_scheduler_process", 1) == (one.role, one.num_processes)
    assert () == read_receipts(tmp_path / "none")


def test_the_launcher_works_from_a_copy_of_a_workspace_without_loop_installed(place: Workspace, tmp_path: Path) -> None:
    """All its files are copied by `loop init`; another `loop` on the path is none of its business."""
    place.patched()
    copy = tmp_path / "copy"
    shutil.copytree(place.root, copy)
    (place.site / "loop").mkdir()
    (place.site / "loop" / "__init__.py").write_text("raise ImportError('another loop')\n")

    assert 2 == launch(copy, **place.settings)["x"]
