"""The production path, as production runs it: `bash launch_server.sh` in a workspace."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loop import starter
from loop.engines.fake import Fake
from loop.flattening import flatten
from loop.host import free_port
from loop.launch import find_device, runtime_dir
from loop.workspace import Workspace
from tests.launching import launch, message, model_of, ship, teller


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace that `loop init` made, whose original tells how it was started instead of serving."""
    root = tmp_path / "workspace"
    list(starter.init(root, synthetic=None, seed=0, model_dir=None))
    teller("original").write(root / "candidates" / "original")
    return root


# what it needs


@pytest.mark.parametrize("names", ["PORT", "MODEL_PATH", "PORT and MODEL_PATH"])
def test_port_and_model_are_required(root: Path, names: str) -> None:
    """The message shows the whole command."""
    said = message(root, **dict.fromkeys(names.split(" and ")))

    expected = f"launch_server.sh: {names} not set; usage: PORT=30000 MODEL_PATH=/path/to/model bash launch_server.sh\n"
    assert expected == said


@pytest.mark.parametrize("port", ["0", "65536", "8080x", "-1", "1e3", "9" * 5000, "٣٠"])
def test_a_port_that_is_none_is_refused(root: Path, port: str) -> None:
    """With its value and what to set."""
    said = message(root, PORT=port)

    assert f"launch_server.sh: PORT={port} is not a port; set PORT to a whole number from 1 to 65535\n" == said


@pytest.mark.parametrize("port", ["1", "65535"])
def test_the_outermost_ports_are_ports(root: Path, port: str) -> None:
    """Whether they are free is the server's to say."""
    assert port == launch(root, PORT=port)["argv"][-1]


@pytest.mark.parametrize("path", ["/no/such/model", "./missing", "../missing", "~/missing"])
def test_a_model_path_that_does_not_exist_is_refused(root: Path, path: str) -> None:
    """The engine would take it for a hub's name and say so a minute later."""
    said = message(root, MODEL_PATH=path)

    assert f"launch_server.sh: MODEL_PATH={path} does not exist; set MODEL_PATH to a checkpoint's directory" in said


def test_a_model_path_that_is_a_file_is_refused(root: Path, model: Path) -> None:
    """The checkpoint's config is not the checkpoint."""
    assert "config.json is a file, not a directory; set MODEL_PATH" in message(
        root, MODEL_PATH=str(model / "config.json")
    )


@pytest.mark.parametrize("name", ["Qwen/Qwen3-4B", "gpt2"])
def test_the_name_of_a_hub_is_the_engines_to_understand(root: Path, name: str) -> None:
    """It is handed on as it is."""
    assert name == launch(root, MODEL_PATH=name)["argv"][0]


def test_a_home_directory_is_found_where_no_shell_expanded_it(root: Path) -> None:
    """A quoted `~` reaches the launcher."""
    assert model_of(root) == launch(root, HOME=str(root.parent), MODEL_PATH="~/model")["argv"][0]


@pytest.mark.parametrize("python", ["/nope", "no-such-python", "/"])
def test_a_python_that_is_none_is_refused(root: Path, python: str) -> None:
    """In the launcher's words, not in the shell's."""
    said = message(root, LOOP_PYTHON=python)

    expected = f"launch_server.sh: no program at '{python}'; set LOOP_PYTHON to the Python that has the engine\n"
    assert expected == said


def test_it_serves_the_original_while_nothing_is_shipped(root: Path) -> None:
    """With the host's default, from an empty directory."""
    told = launch(root)

    assert [model_of(root), "127.0.0.1", "30000"] == told["argv"]
    assert [] == list(Path(told["cwd"]).iterdir())


def test_a_workspace_as_init_made_it_can_serve(tmp_path: Path) -> None:
    """The original's effective bundle is there before anything was promoted.

    The interpreter has no engine, so the server ends at once; the launcher must have got that far.
    """
    list(starter.init(tmp_path / "fresh", synthetic=None, seed=0, model_dir=None))
    bare = str(getattr(sys, "_base_executable", sys.executable))

    done = launch(tmp_path / "fresh", check=False, LOOP_PYTHON=bare)

    assert "loop: bundle original sha256" in done.stderr


def test_the_host_can_be_chosen(root: Path) -> None:
    """HOST is the one optional part of the address."""
    assert [model_of(root), "0.0.0.0", "1234"] == launch(root, HOST="0.0.0.0", PORT="1234")["argv"]


def test_a_relative_model_path_still_names_the_model(root: Path, model: Path) -> None:
    """The server starts in another directory than the one it was asked from."""
    told = launch(root, cwd=model.parent, MODEL_PATH=model.name)

    assert str(model) == os.path.normpath(Path(told["cwd"]) / told["argv"][0])


def test_it_prints_the_hash_of_what_it_serves(root: Path) -> None:
    """On standard error, before the server says anything."""
    bundle = teller("original")

    done = launch(root, check=False)

    assert f"loop: bundle original sha256 {bundle.sha256} on cpu\n" == done.stderr


# which bundle


def test_what_is_shipped_for_the_device_is_served(root: Path) -> None:
    """Each device has its own entry; one without is served the original."""
    ship(root, cpu=teller("slow", {"a": 1}), NVIDIA_H200=teller("fast", {"a": 2}))

    assert ["--a", "1"] == launch(root)["argv"][3:]
    assert ["--a", "2"] == launch(root, LOOP_DEVICE="NVIDIA H200")["argv"][3:]
    assert [] == launch(root, LOOP_DEVICE="NVIDIA B200")["argv"][3:]


def test_a_named_bundle_wins_over_the_shipped_one(root: Path, tmp_path: Path) -> None:
    """So that the benchmark and production take the same path."""
    ship(root, cpu=teller("shipped", {"a": 1}))
    teller("mine", {"a": 2}).write(tmp_path / "arm")

    assert ["--a", "2"] == launch(root, LOOP_BUNDLE=str(tmp_path / "arm"))["argv"][3:]


def test_safe_mode_wins_over_everything(root: Path, tmp_path: Path) -> None:
    """The way out at night must not depend on what else is set."""
    ship(root, cpu=teller("shipped", {"a": 1}))
    teller("mine", {"a": 2}).write(tmp_path / "arm")

    assert [] == launch(root, LOOP_NO_OVERLAY="1")["argv"][3:]
    assert [] == launch(root, LOOP_NO_OVERLAY="1", LOOP_BUNDLE=str(tmp_path / "arm"))["argv"][3:]
    assert ["--a", "1"] == launch(root, LOOP_NO_OVERLAY="0")["argv"][3:]


# what it refuses


def test_an_edited_bundle_is_not_served(root: Path) -> None:
    """It says both hashes and the way out, and the way out works."""
    bundle = teller("shipped", {"a": 1})
    ship(root, cpu=bundle)
    (path,) = (root / "candidates" / "shipped").glob("*/effective.json")
    path.write_text(path.read_text().replace('"args":{"a":1}', '"args":{"a":2}'))

    said = message(root)

    assert f"{path} was edited: it hashes to " in said
    assert f"it claims {bundle.sha256[:16]}; start with LOOP_NO_OVERLAY=1 for the original configuration" in said
    assert [] == launch(root, LOOP_NO_OVERLAY="1")["argv"][3:]


@pytest.mark.parametrize("damage", ["missing", "edited"])
def test_a_broken_original_says_who_writes_it(root: Path, damage: str) -> None:
    """No round can be promoted to mend it; in safe mode there is nothing safer to fall back on."""
    path = root / "candidates" / "original" / "effective.json"
    path.unlink() if damage == "missing" else path.write_text(path.read_text().replace('"env":{}', '"env":{"A":"1"}'))
    way_out = "`loop init` writes it anew, or restore it from git\n"

    said = message(root)
    safe = message(root, LOOP_NO_OVERLAY="1")

    assert f"{path} {'does not exist' if damage == 'missing' else 'was edited'}" in said
    assert said.endswith(f"; {way_out}")
    assert safe.endswith(f"; LOOP_NO_OVERLAY=1 serves this very file: {way_out}")


def test_a_missing_named_bundle_says_which_variable_names_it(root: Path, tmp_path: Path) -> None:
    """Neither git nor `loop init` knows that directory."""
    said = message(root, LOOP_BUNDLE=str(tmp_path / "nowhere"))

    assert f"{tmp_path / 'nowhere' / 'effective.json'} does not exist; LOOP_BUNDLE names it" in said


@pytest.mark.parametrize("part", ["argv", "command"])
def test_an_edited_command_line_is_not_served(root: Path, part: str) -> None:
    """The argv is what runs: it must be proven like the content."""
    ship(root, cpu=teller("shipped", {"a": 1}))
    (path,) = (root / "candidates" / "shipped").glob("*/effective.json")
    document = json.loads(path.read_text())
    document[part].append("--other")
    path.write_text(json.dumps(document))

    assert "was edited" in message(root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "cannot be read"),
        ("[1]", "has schema None; this launcher reads 'loop.effective/1'"),
        ('{"schema": "loop.effective/9"}', "has schema 'loop.effective/9'; this launcher reads 'loop.effective/1'"),
        ('{"schema": "loop.effective/1"}', "effective.json"),
    ],
)
def test_what_it_cannot_read_is_named(root: Path, tmp_path: Path, text: str, expected: str) -> None:
    """The file and what is wrong with it."""
    (tmp_path / "arm").mkdir()
    (tmp_path / "arm" / "effective.json").write_text(text)

    assert expected in message(root, LOOP_BUNDLE=str(tmp_path / "arm"))


def test_a_pointer_of_another_schema_is_named(root: Path) -> None:
    """An old launcher must not guess at a new pointer."""
    (root / "candidates" / "shipped.json").write_text('{"schema": "loop.shipped/9", "devices": {}}')

    said = message(root)

    assert "shipped.json has schema 'loop.shipped/9'; this launcher reads 'loop.shipped/1'" in said
    assert "LOOP_NO_OVERLAY=1" in said
    assert [] == launch(root, LOOP_NO_OVERLAY="1")["argv"][3:]


# what the server gets


def test_the_platform_comes_before_the_bundle(root: Path) -> None:
    """So that a bundle that names one of its options, or variables, wins."""
    content = teller("b").content.model_copy(update={"env": {"BOTH": "bundle"}})
    bundle = teller(
        "b",
        {"a": 1},
        platforms={"cpu": {"argv": ["--device", "cpu"], "env": {"BOTH": "platform", "ONE": "platform"}}},
        content=content,
        sha256=content.digest(),
    )
    ship(root, cpu=bundle)

    told = launch(root)

    assert [model_of(root), "127.0.0.1", "30000", "--device", "cpu", "--a", "1"] == told["argv"]
    assert ("bundle", "platform") == (told["env"]["BOTH"], told["env"]["ONE"])


def test_a_device_without_a_platform_of_its_own_gets_the_one_for_all(root: Path) -> None:
    """`*` stands for every other device."""
    platforms = {"cpu": {"argv": ["--device", "cpu"]}, "*": {"argv": ["--any"]}}
    ship(root, cpu=teller("b", platforms=platforms), NVIDIA_H200=teller("b", platforms=platforms))

    assert ["--device", "cpu"] == launch(root)["argv"][3:]
    assert ["--any"] == launch(root, LOOP_DEVICE="NVIDIA H200")["argv"][3:]


@pytest.mark.parametrize("device", ["cpu", "*"])
def test_a_platform_plugin_is_there_without_being_installed(root: Path, device: str) -> None:
    """Built once into the runtime directory, in front of what the caller's path had."""
    point = {"group": "loop.test.platforms", "name": "loop_test", "file": "cpu_platform.py", "attribute": "activate"}
    ship(root, cpu=teller("b", platforms={device: {"entry_point": point}}))

    told = launch(root, PYTHONPATH="/elsewhere")

    assert ["loop_test"] == told["found"]
    assert "/elsewhere" == told["env"]["PYTHONPATH"].split(os.pathsep)[-1]
    assert told["env"]["PYTHONPATH"].startswith(str(root.parent / "runtime" / "plugins"))


def test_the_process_that_was_started_becomes_the_server(root: Path) -> None:
    """Signals and exit codes reach it, and nothing stands between."""
    env = {**os.environ, "PORT": "1", "MODEL_PATH": model_of(root), "LOOP_PYTHON": sys.executable}
    env |= {"LOOP_DEVICE": "cpu", "LOOP_RUNTIME_DIR": str(root.parent / "runtime")}
    with subprocess.Popen(
        ["bash", str(root / "launch_server.sh")], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        told = json.loads(process.communicate(timeout=60)[0])

    assert process.pid == told["pid"]


def test_it_works_from_a_read_only_copy_and_writes_nothing_there(root: Path, tmp_path: Path) -> None:
    """As production mounts it: not a byte-code file, not a lock."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    before = sorted(copy.rglob("*"))
    for path in [*before, copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert [model_of(root), "127.0.0.1", "30000"] == launch(copy)["argv"]
        assert before == sorted(copy.rglob("*"))
    finally:
        for path in [copy, *before]:
            path.chmod(0o755)


def test_it_finds_its_files_from_any_directory(root: Path, tmp_path: Path) -> None:
    """The workspace is where the script is, also where a directory shadows the package."""
    (tmp_path / "elsewhere" / "loop").mkdir(parents=True)

    assert [model_of(root), "127.0.0.1", "30000"] == launch(root, cwd=tmp_path / "elsewhere")["argv"]


# a real server


@pytest.fixture
def served(workspace: Workspace, model: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """(process, port) of the fake engine, launched with its original configuration."""
    flattened = flatten(workspace.candidates, "original", engine="fake", shipped=None, original="original")
    Fake(python=sys.executable).effective(flattened).write(workspace.candidates / "original")
    port = free_port()
    env = {
        **os.environ,
        "PORT": str(port),
        "MODEL_PATH": str(model),
        "LOOP_PYTHON": sys.executable,
        "LOOP_RUNTIME_DIR": str(workspace.root / "runtime"),
    }
    with subprocess.Popen(["bash", str(workspace.launcher)], env=env, stderr=subprocess.DEVNULL) as process:
        yield process, port
        process.kill()


def test_a_launched_engine_answers_on_its_port_and_ends_on_a_signal(
    served: tuple[subprocess.Popen[bytes], int], model: Path
) -> None:
    """The whole way, with a server that serves."""
    process, port = served
    deadline = time.monotonic() + 20
    while True:
        try:
            info = httpx.get(f"http://127.0.0.1:{port}/server_info", trust_env=False).json()
            break
        except httpx.TransportError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    assert (str(model), port) == (info["model_path"], info["port"])
    process.terminate()
    assert 0 == process.wait(10)


# without the shell


def test_the_device_can_be_overridden() -> None:
    """For machines whose driver says something else."""
    assert "NVIDIA H200" == find_device({"LOOP_DEVICE": "NVIDIA H200"})


def test_built_things_live_where_the_user_may_write(tmp_path: Path) -> None:
    """Without a home, in a directory of one's own below the temporary one."""
    home = str(tmp_path)
    wanted = {"LOOP_RUNTIME_DIR": "/r", "XDG_CACHE_HOME": "/x", "HOME": home}
    own = Path(tempfile.gettempdir()) / f"sglang-loop-{os.getuid()}"

    assert Path("/r") == runtime_dir(wanted)
    assert Path("/x/sglang-loop") == runtime_dir({**wanted, "LOOP_RUNTIME_DIR": ""})
    assert tmp_path / ".cache" / "sglang-loop" == runtime_dir({"HOME": home})
    assert own == runtime_dir({"HOME": "/no/such/home"})
    assert own == runtime_dir({})
