"""The workspace: found upward, its settings, and the model it serves."""

import sys
from pathlib import Path

import pytest

from loop.errors import InputError
from loop.workspace import DeviceSettings, Workspace, find_workspace


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the caller's environment."""
    for name in ("MODEL_PATH", "LOOP_PYTHON", "LOOP_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def made(root: Path, text: str = "") -> Workspace:
    """The workspace at `root` with these settings."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "loop.toml").write_text(f'schema = "loop.workspace/1"\n{text}')
    return find_workspace(root)


def checkpoint(directory: Path) -> Path:
    """What passes for a model directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return directory


def test_it_is_found_from_any_directory_below(tmp_path: Path) -> None:
    """The nearest one wins."""
    made(tmp_path / "outer")
    inner = made(tmp_path / "outer" / "a" / "inner")
    below = tmp_path / "outer" / "a" / "inner" / "b" / "c"
    below.mkdir(parents=True)

    assert inner.root == find_workspace(below).root
    assert tmp_path / "outer" == find_workspace(tmp_path / "outer" / "a").root


def test_where_there_is_none_it_says_how_to_make_one(tmp_path: Path) -> None:
    """With the directory that was looked at."""
    with pytest.raises(InputError) as caught:
        find_workspace(tmp_path)

    assert f"no loop.toml in {tmp_path} or above it\n  next: `loop init DIR` makes a workspace" == str(caught.value)


def test_its_folders_lie_in_it(tmp_path: Path) -> None:
    """By their names."""
    workspace = made(tmp_path)

    folders = [workspace.candidates, workspace.workloads, workspace.ledger, workspace.reports, workspace.launcher]
    names = ["candidates", "workloads", "ledger", "reports", "launch_server.sh"]
    assert [tmp_path / name for name in names] == folders


def test_a_device_without_settings_has_the_defaults(tmp_path: Path) -> None:
    """One that has some keeps the other defaults."""
    workspace = made(tmp_path, '[device.cpu]\nsigma_prior_pct = 4.0\n[device."NVIDIA H200"]\noriginal = "tuned"\n')

    assert DeviceSettings(sigma_prior_pct=4.0) == workspace.on("cpu")
    assert DeviceSettings(original="tuned") == workspace.on("NVIDIA H200")
    assert DeviceSettings() == workspace.on("NVIDIA B200")


def test_settings_are_checked(tmp_path: Path) -> None:
    """A typo names the closest known one."""
    with pytest.raises(InputError, match=r"engine\.pyton: no such field; .*did you mean 'python'"):
        made(tmp_path, '[engine]\npyton = "x"\n')


# the model


def test_without_a_model_it_says_the_three_ways_to_name_one(tmp_path: Path) -> None:
    """And how to make one."""
    with pytest.raises(InputError) as caught:
        made(tmp_path).model_path(None)

    expected = f"no model: neither --model, MODEL_PATH nor [model] path in {tmp_path / 'loop.toml'} names one"
    assert expected in str(caught.value)
    assert "pass --model DIR or set [model] path; `loop init --synthetic tiny` makes a small one" in str(caught.value)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    """With the file that it lacks."""
    with pytest.raises(InputError, match=r"missing is not a model directory: it has no config\.json"):
        made(tmp_path, '[model]\npath = "missing"\n').model_path(None)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As everywhere."""
    in_file, in_variable, on_line = (checkpoint(tmp_path / "models" / name) for name in ("file", "variable", "line"))
    workspace = made(tmp_path, '[model]\npath = "models/file"\n')

    assert in_file == workspace.model_path(None)
    monkeypatch.setenv("MODEL_PATH", str(in_variable))
    assert in_variable == workspace.model_path(None)
    assert on_line == workspace.model_path(str(on_line))


def test_a_path_on_the_command_line_is_relative_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the file is relative to the file."""
    workspace = made(tmp_path / "workspace", '[model]\npath = "tiny"\n')
    in_file, here = checkpoint(tmp_path / "workspace" / "tiny"), checkpoint(tmp_path / "here" / "tiny")
    monkeypatch.chdir(tmp_path / "here")

    assert (in_file, here) == (workspace.model_path(None), workspace.model_path("tiny"))


# the server's Python


def test_servers_run_with_our_python_unless_another_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable, or by the file, which wins because it was chosen for this workspace."""
    assert sys.executable == made(tmp_path).engine_python()
    monkeypatch.setenv("LOOP_PYTHON", "/opt/python")
    assert "/opt/python" == made(tmp_path).engine_python()
    assert "/other" == made(tmp_path, '[engine]\npython = "/other"\n').engine_python()


def test_a_relative_python_lies_in_the_workspace_and_a_bare_name_on_the_path(tmp_path: Path) -> None:
    """`.venv/bin/python` and `python3`."""
    inside = made(tmp_path, '[engine]\npython = ".venv/bin/python"\n').engine_python()
    named = made(tmp_path, '[engine]\npython = "python3"\n').engine_python()

    assert (str(tmp_path / ".venv/bin/python"), "python3") == (inside, named)
