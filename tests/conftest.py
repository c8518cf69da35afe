"""A workspace with the fake engine, a generated checkpoint and a suite that takes seconds."""

import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomlkit
from hypothesis import settings
from typer.testing import CliRunner

from loop import prompts, starter
from loop.cli import app
from loop.ledger import Round
from loop.plan import Options, make_plan
from loop.prompts import Shape
from loop.prompts.checks import SMALL
from loop.run import run_round
from loop.synthetic import generate
from loop.watch import Watcher
from loop.workspace import Workspace, find_workspace

REPOSITORY = Path(__file__).parents[1]

# Two minutes for the whole suite, and no failure by luck; `HYPOTHESIS_PROFILE=thorough` looks for new cases.
settings.register_profile("quick", max_examples=40, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the launcher builds goes away with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOP_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny synthetic checkpoint with its tokenizer."""
    return generate(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def workspace(tmp_path: Path, model: Path) -> Workspace:
    """A fresh workspace on the fake engine."""
    return make_workspace(tmp_path / "workspace", model)


@pytest.fixture(scope="session")
def noop(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Workspace, Round]:
    """A workspace with a closed round of `noop` in its ledger. Only to be looked at."""
    workspace = make_workspace(tmp_path_factory.mktemp("noop") / "workspace", model)
    return workspace, run_round(make_plan(workspace, "noop", Options()), Watcher())


@pytest.fixture(scope="session")
def won(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Workspace:
    """A workspace whose only round found `fast` better than a slow original. Only to be copied."""
    workspace = make_workspace(tmp_path_factory.mktemp("won") / "workspace", model)
    bundle_in(workspace, "original", args={"tpot_ms": 12.0, "ttft_ms": 30.0})
    bundle_in(workspace, "fast", parent="original", args={"tpot_ms": 3.0, "ttft_ms": 6.0})
    run_round(make_plan(workspace, "fast", Options()), Watcher())
    return workspace


def make_workspace(root: Path, model: Path) -> Workspace:
    """What `loop init` makes, with the fake engine and the `brief` suite.

    The noise prior is large, because tests share their machine: what they tell apart differs by factors.
    """
    list(starter.init(root, synthetic=None, seed=0, model_dir=None))
    write_suite(root / "workloads" / "brief")
    settings = {
        "schema": "loop.workspace/1",
        "suite": "brief",
        "engine": {"name": "fake", "python": sys.executable, "start_timeout_s": 60.0},
        "model": {"path": str(model)},
        "device": {"cpu": {"sigma_prior_pct": 20.0}},
    }
    (root / "loop.toml").write_text(tomlkit.dumps(settings))
    workspace = find_workspace(root)
    list(starter.refresh_originals(workspace))
    return workspace


def write_suite(directory: Path, *, passes: int = 1, gates: dict[str, dict[str, Any]] | None = None) -> None:
    """A suite of a sequential and a concurrent workload, a few short requests each."""
    directory.mkdir(parents=True)
    files = {
        "check.jsonl": prompts.correctness("brief", {"normal": 3, "code": 1, "cjk": 1}, SMALL),
        "one.jsonl": prompts.traffic("brief-one", "chat", [Shape(input_tokens=24, output_tokens=12)] * 3),
        "four.jsonl": prompts.traffic("brief-four", "mixed", [Shape(input_tokens=16, output_tokens=8)] * 8),
    }
    stored = {}
    for name, content in files.items():
        prompts.write(directory / name, content)
        stored[name] = {"file": name, "sha256": hashlib.sha256((directory / name).read_bytes()).hexdigest()}
    suite: dict[str, Any] = {
        "schema": "loop.suite/1",
        "title": "seconds on the fake engine",
        "warmup": {"max_blocks": 3, "max_output_tokens": 4, "agree_pct": 50.0},
        "check": stored["check.jsonl"],
        "workload": [
            {"id": "one", "kind": "sequential", "passes": passes, "prompts": stored["one.jsonl"]},
            {"id": "four", "kind": "concurrent", "concurrency": 4, "passes": passes, "prompts": stored["four.jsonl"]},
        ],
        # Tests share their machine: a client that is late by a millisecond proves nothing about short requests.
        "gates": {
            "client_bound": {"max_outside_share": 0.9, "max_lag_share": 0.9},
            "canary": {"max_excess_ms": 35.0},
            **(gates or {}),
        },
    }
    (directory / "suite.toml").write_text(tomlkit.dumps(suite))


def bundle_in(workspace: Workspace, bundle_id: str, *, env: dict[str, str] | None = None, **fields: Any) -> str:
    """Write a bundle with these server options and return its id."""
    args = {name.replace("_", "-"): value for name, value in fields.pop("args", {}).items()}
    server = {"args": args, "env": env or {}}
    document = {"schema": "loop.bundle/1", "hypothesis": "a test", **fields, "server": server}
    directory = workspace.candidates / bundle_id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "bundle.toml").write_text(tomlkit.dumps(document))
    list(starter.refresh_originals(workspace))
    return bundle_id


@pytest.fixture
def write_bundle(workspace: Workspace) -> Callable[..., str]:
    """A function that writes a bundle with these server options and returns its id."""
    return functools.partial(bundle_in, workspace)


@pytest.fixture
def run(workspace: Workspace) -> Callable[..., Round]:
    """A function that runs a round of a bundle in this process; it stops at three sessions unless asked to `extend`."""

    def run_(bundle_id: str, watcher: Watcher | None = None, **options: Any) -> Round:
        return run_round(make_plan(workspace, bundle_id, Options(**{"extend": False, **options})), watcher or Watcher())

    return run_


class Answer(NamedTuple):
    """What a command said, and with which exit code it ended."""

    returncode: int
    stdout: str
    stderr: str


def ask(root: Path, *arguments: str) -> Answer:
    """Run the `loop` command in this process, in `root`: most of a second is saved where no process is needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(sys, "argv", ["loop", *arguments])
        runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "MODEL_PATH": None, "LOOP_PYTHON": None})
        result = runner.invoke(app, list(arguments), catch_exceptions=False)
    return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def loop(workspace: Workspace) -> Callable[..., Answer]:
    """A function that runs the `loop` command in the workspace."""
    return functools.partial(ask, workspace.root)


@pytest.fixture
def loop_process(workspace: Workspace) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the `loop` command as a process of its own, as a person would."""

    def run_process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "loop", *arguments],
            cwd=workspace.root,
            env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run_process


def stored_round(workspace: Workspace) -> dict[str, Any]:
    """The only round in the workspace's ledger, as plain JSON."""
    (path,) = (workspace.ledger / "rounds").glob("*.json")
    document: dict[str, Any] = json.loads(path.read_text())
    return document
