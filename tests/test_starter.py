"""`loop init`: a workspace that works at once."""

import json
from pathlib import Path

import pytest

from loop import starter
from loop.workspace import find_workspace
from tests.conftest import REPOSITORY, Answer, ask


def files(root: Path) -> list[str]:
    """Every file below a directory."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def plan(root: Path, *arguments: str) -> Answer:
    """`loop plan noop` in a workspace."""
    return ask(root, "plan", "noop", "--json", *arguments)


def test_a_new_workspace_has_everything_a_round_needs(tmp_path: Path) -> None:
    """The launcher with its two modules and the platform, bundles and suites."""
    said = list(starter.init(tmp_path / "new", synthetic=None, seed=0, model_dir=None))

    made = files(tmp_path / "new")
    assert f"workspace {tmp_path / 'new'}" == said[0]
    needed = {
        "loop.toml",
        "launch_server.sh",
        "loop/launch.py",
        "loop/overlay.py",
        "loop/cpu_platform.py",
        "candidates/original/bundle.toml",
        "candidates/original/effective.json",
        "candidates/noop/bundle.toml",
        "workloads/smoke/suite.toml",
        "workloads/quadrants/suite.toml",
        ".gitignore",
    }
    assert set() == needed - set(made)
    assert "smoke" == find_workspace(tmp_path / "new").settings.suite


@pytest.mark.parametrize("name", starter.LAUNCH_FILES)
def test_the_launcher_that_is_copied_is_the_one_that_is_tested(tmp_path: Path, name: str) -> None:
    """Byte for byte."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    assert (REPOSITORY / name).read_bytes() == (tmp_path / name).read_bytes()


def test_a_copy_is_not_a_package_that_shadows_this_one(tmp_path: Path) -> None:
    """`python -m loop` in a workspace must run the installed `loop`."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    expected = sorted(Path(name).name for name in starter.LAUNCH_FILES)
    assert expected == sorted(path.name for path in (tmp_path / "loop").iterdir())
    assert "__init__.py" not in expected


def test_an_original_with_a_file_that_was_edited_is_written_anew(tmp_path: Path) -> None:
    """The launcher refuses it, and says that this command mends it."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))
    directory = tmp_path / "candidates" / "original"
    (directory / "hooks.py").write_text("def activate():\n    pass\n")
    with (directory / "bundle.toml").open("a") as file:
        file.write('[[plugin]]\nmodule = "hooks"\nfile = "hooks.py"\n')
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))
    (path,) = (directory / "files").iterdir()
    path.write_text("edited")

    said = list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    assert ["wrote candidates/original/effective.json"] == said
    assert "def activate():\n    pass\n" == path.read_text()


def test_loop_plan_accepts_a_new_workspace_with_a_synthetic_model(tmp_path: Path) -> None:
    """The real engine, the suite that ships, a checkpoint made on the way."""
    said = list(starter.init(tmp_path / "new", synthetic="tiny", seed=0, model_dir=None))
    made = tmp_path / "new" / "models" / "tiny"
    assert f"model {made}, " == said[-2].partition("MB")[0].rsplit(" ", 2)[0] + " "
    assert f"next: `loop plan noop --model {made}`, or name it for good: " in said[-1]

    done = plan(tmp_path / "new", "--model", "models/tiny")

    assert 0 == done.returncode, done.stderr
    planned = json.loads(done.stdout)
    assert ("smoke", "sglang") == (planned["suite"]["id"], planned["engine"]["name"])
    assert planned["candidate"]["sha256"] == planned["baseline"]["sha256"]


def test_without_a_model_the_plan_says_how_to_get_one(tmp_path: Path) -> None:
    """As `loop init` said."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    done = plan(tmp_path)

    assert 2 == done.returncode
    assert "`loop init --synthetic tiny` makes a small one" in done.stderr


def test_an_existing_workspace_is_left_as_it_is(tmp_path: Path) -> None:
    """Nothing of anybody's is written over; what the launcher reads is made again."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))
    (tmp_path / "loop.toml").write_text('schema = "loop.workspace/1"\nsuite = "mine"\n')
    (tmp_path / "candidates" / "noop" / "bundle.toml").write_text("mine")
    before = files(tmp_path)
    (tmp_path / "candidates" / "original" / "effective.json").unlink()

    said = list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    assert ["wrote candidates/original/effective.json"] == said
    assert before == files(tmp_path)
    assert "mine" == find_workspace(tmp_path).settings.suite
    assert "mine" == (tmp_path / "candidates" / "noop" / "bundle.toml").read_text()
    assert [] == list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))


def test_files_that_were_there_are_kept(tmp_path: Path) -> None:
    """A directory that is no workspace may hold something that is called alike."""
    (tmp_path / "candidates" / "noop").mkdir(parents=True)
    (tmp_path / "candidates" / "noop" / "bundle.toml").write_text("mine")
    (tmp_path / ".gitignore").write_text("mine\n")

    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))

    assert "mine" == (tmp_path / "candidates" / "noop" / "bundle.toml").read_text()
    assert "mine\n" in (tmp_path / ".gitignore").read_text()


def test_a_model_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    """Its hash is in every round."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")

    said = list(starter.init(tmp_path, synthetic="tiny", seed=0, model_dir=None))

    assert f"model {tmp_path / 'models' / 'tiny'} is there already" == said[-2]
    assert ["config.json"] == files(tmp_path / "models" / "tiny")


def test_a_workspace_that_names_its_model_needs_no_next_step(tmp_path: Path) -> None:
    """What was named is not proposed again."""
    list(starter.init(tmp_path, synthetic=None, seed=0, model_dir=None))
    with (tmp_path / "loop.toml").open("a") as settings:
        settings.write('[model]\npath = "models/tiny"\n')
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")

    said = list(starter.init(tmp_path, synthetic="tiny", seed=0, model_dir=None))

    assert f"model {tmp_path / 'models' / 'tiny'} is there already" == said[-1]
