"""The shape of the package: small modules, telling names, a workspace that is what it says."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from loop.bundles import bundle_ids
from loop.engines.sglang import SGLang
from loop.plan import load_effective
from loop.suites import load_suite, suite_ids
from loop.workspace import find_workspace
from tests.conftest import REPOSITORY

MODULES = sorted((REPOSITORY / "loop").rglob("*.py"))
HERE = find_workspace(REPOSITORY)


@pytest.fixture(scope="module")
def engine() -> SGLang:
    """The installed SGLang."""
    return SGLang(python=HERE.engine_python())


def test_no_module_is_longer_than_300_lines() -> None:
    """What does not fit has two jobs."""
    long = {str(path.relative_to(REPOSITORY)): text.count("\n") for path in MODULES if (text := path.read_text())}

    assert {} == {name: lines for name, lines in long.items() if lines > 300}


def test_the_median_module_is_short() -> None:
    """Most files are read in one sitting."""
    lengths = sorted(path.read_text().count("\n") for path in MODULES)

    assert lengths[len(lengths) // 2] <= 110


def test_the_story_of_a_round_is_one_short_function() -> None:
    """`run_round` fits on a screen."""
    source = (REPOSITORY / "loop" / "run.py").read_text()
    body = source.split("def run_round", 1)[1].split("\ndef ", 1)[0]

    assert body.count("\n") <= 60


def test_no_module_is_called_after_what_it_is_not() -> None:
    """Names are nouns of the glossary."""
    banned = {"utils", "helpers", "common", "base", "manager", "misc"}

    assert [] == [str(path) for path in MODULES if path.stem in banned]


@pytest.mark.parametrize("bundle_id", bundle_ids(HERE.candidates))
def test_every_shipped_bundle_is_valid_for_the_installed_sglang(bundle_id: str, engine: SGLang) -> None:
    """Nobody should find out by running it."""
    _, effective, _ = load_effective(HERE, engine, bundle_id, "cpu")

    assert bundle_id == effective.bundle


@pytest.mark.parametrize("suite_id", suite_ids(HERE.workloads))
def test_every_suite_loads_with_its_hashes(suite_id: str) -> None:
    """Prompts are what the suite says."""
    assert load_suite(HERE.workloads, suite_id).check


def test_the_quadrants_suite_has_the_seeds_shape() -> None:
    """Five sequential workloads, a four-way and an eight-way one, 174 visible prompts in seven categories."""
    suite = load_suite(HERE.workloads, "quadrants")

    assert 174 == len(suite.check)
    assert 7 == len({prompt.category for prompt in suite.check})
    assert 5 == sum(workload.kind == "sequential" for workload in suite.suite.workload)
    assert [4, 8] == [w.concurrency for w in suite.suite.workload if w.kind == "concurrent"]


def test_the_original_that_the_launcher_serves_is_the_original_that_is_declared(engine: SGLang) -> None:
    """`effective.json` is committed, because production parses no TOML."""
    stored = json.loads((HERE.candidates / "original" / "effective.json").read_text())
    _, effective, _ = load_effective(HERE, engine, "original", "cpu")

    assert effective.document() == stored


def test_the_readme_names_the_commands_that_ci_runs() -> None:
    """What CI runs is what the README says."""
    readme = (REPOSITORY / "README.md").read_text()

    assert "make demo" in readme
    assert "make test" in readme
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_ruff_ignores_carry_their_reasons() -> None:
    """An exception without a reason becomes a habit."""
    lines = (REPOSITORY / "pyproject.toml").read_text().split("ignore = [", 1)[1].split("\n]", 1)[0].splitlines()

    assert [] == [line for line in lines if re.match(r'\s*"', line) and "#" not in line]


def test_the_package_offers_the_cpu_platform_to_sglang() -> None:
    """Through SGLang's own entry-point group."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert {"loop_cpu": "loop.cpu_platform:activate"} == project["entry-points"]["sglang.srt.platforms"]


def test_nothing_is_written_for_one_machine() -> None:
    """No absolute path of somebody's machine in code, bundles or suites."""
    suspicious = re.compile(r"/(home|root|Users|work)/\w")
    files = [*MODULES, *Path(HERE.candidates).rglob("*.toml"), *Path(HERE.workloads).rglob("*.toml")]

    assert [] == [str(path) for path in files if suspicious.search(path.read_text())]
