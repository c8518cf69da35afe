"""Suites: proven prompts, valid workloads, and an identity that everything but the title is part of."""

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomlkit

from loop import metrics, plugins, prompts
from loop.errors import SuiteError
from loop.metrics import Metric
from loop.record import sha256_of
from loop.suites import OBJECTIVES, Workload, load_suite, suite_ids
from tests.conftest import REPOSITORY, write_suite

Edit = Callable[[dict[str, Any]], Any]
OPEN_LOOP: dict[str, Any] = {"kind": "open_loop", "rate_per_s": 20.0, "slo": {"ttft_ms": 100, "tpot_ms": 20}}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the suite `brief`."""
    folder = tmp_path_factory.mktemp("suites")
    write_suite(folder / "brief")
    return folder


@pytest.fixture
def workloads(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return shutil.copytree(pristine, tmp_path / "workloads")


def edited(workloads: Path, edit: Edit) -> Path:
    """The folder, with an edited suite.toml."""
    path = workloads / "brief" / "suite.toml"
    document = tomlkit.parse(path.read_text())
    edit(document)
    path.write_text(tomlkit.dumps(document))
    return workloads


def refusal(workloads: Path, suite_id: str = "brief") -> str:
    """Why a suite is refused."""
    with pytest.raises(SuiteError) as caught:
        load_suite(workloads, suite_id)
    return str(caught.value)


def test_a_suite_comes_with_its_prompts(workloads: Path) -> None:
    """In sending order, by workload."""
    loaded = load_suite(workloads, "brief")

    assert ("brief", ["one", "four"]) == (loaded.id, list(loaded.traffic))
    assert (5, 3, 8) == (len(loaded.check), len(loaded.traffic["one"]), len(loaded.traffic["four"]))
    assert prompts.read(workloads / "brief" / "one.jsonl") == loaded.traffic["one"]
    assert 4 == loaded.workload("four").concurrency


@pytest.mark.parametrize("suite_id", ["smoke", "quadrants", "h200_cut"])
def test_the_suites_that_ship_load(suite_id: str) -> None:
    """Every prompt file hashes to what its suite says."""
    loaded = load_suite(REPOSITORY / "workloads", suite_id)

    assert suite_id == loaded.id
    assert {workload.score_class for workload in loaded.suite.workload} == {"sequential", "concurrent"}


def test_an_unknown_suite_lists_the_known_ones_and_the_closest(workloads: Path) -> None:
    """Folders without a suite.toml are none."""
    (workloads / "notes").mkdir()

    assert ["brief"] == suite_ids(workloads)
    expected = f"no suite called 'breif' in {workloads}; known: brief; did you mean 'brief'?"
    assert expected == refusal(workloads, "breif")


@pytest.mark.parametrize("name", ["check.jsonl", "one.jsonl", "four.jsonl"])
def test_an_edited_prompt_file_is_refused(workloads: Path, name: str) -> None:
    """One byte is enough; both hashes are named."""
    path = workloads / "brief" / name
    data = path.read_bytes()
    path.write_bytes(data.replace(b"a", b"b", 1))

    found, expected = (hashlib.sha256(content).hexdigest() for content in (path.read_bytes(), data))
    assert f"{path} hashes to {found}, the suite says {expected}: the workload was edited" in refusal(workloads)


def test_a_missing_prompt_file_is_named(workloads: Path) -> None:
    """With the command that writes it again."""
    (workloads / "brief" / "one.jsonl").unlink()

    assert re.search(r"one\.jsonl is missing\n.*python -m loop\.prompts", refusal(workloads))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["workload"][0].update(concurrency=2), "a sequential workload has concurrency 1"),
        (lambda d: d["workload"][1].update(concurrency=0), "workload.1.concurrency: Input should be greater than or"),
        (lambda d: d["workload"][1].update(passes=0), "workload.1.passes: Input should be greater than or equal to 1"),
        (lambda d: d["workload"][1].update(kind="parallel"), "workload.1.kind: Input should be 'sequential', "),
        (lambda d: d["workload"][1].update(id="one"), "two workloads have the same id"),
        (lambda d: d["workload"][1].update(id="../one"), "workload.1.id: String should match pattern"),
        (lambda d: d["workload"][1].update(id="one\n"), "workload.1.id: String should match pattern"),
        (lambda d: d["workload"][1].update(rate=3), "known: arrival, concurrency, id, kind, passes, prompts"),
        (lambda d: d.update(workload=[]), "workload: Tuple should have at least 1 item"),
        (lambda d: d.update(schema="loop.suite/9"), "schema: Input should be 'loop.suite/1'"),
        (lambda d: d["warmup"].update(max_blocks=2), "warmup.max_blocks: Input should be greater than or equal to 3"),
        (lambda d: d["warmup"].update(agree=2.0), "warmup.agree: no such field; known: agree_pct, max_blocks"),
        (lambda d: d.pop("check"), "check: Field required"),
        (lambda d: d.update(gate={}), "gate: no such field; known: check, dialect, gates, "),
        (lambda d: d.update(dialect="chatty"), "dialect: Input should be 'generate', 'completions' or 'chat'"),
        (lambda d: d["workload"][1].update(kind="open_loop"), "an open_loop workload needs rate_per_s and slo"),
        (lambda d: d["workload"][1].update(kind="open_loop", rate_per_s=3), "needs rate_per_s and slo"),
        (lambda d: d["workload"][1].update(OPEN_LOOP, rate_per_s=0), "rate_per_s: Input should be greater than 0"),
        (lambda d: d["workload"][1].update(OPEN_LOOP, slo={}), "an SLO bounds ttft_ms, tpot_ms or both"),
        (lambda d: d["workload"][1].update(OPEN_LOOP, slo={"e2e_ms": 3}), "known: tpot_ms, ttft_ms"),
        (lambda d: d["workload"][1].update(OPEN_LOOP, arrival="pareto"), "arrival: Input should be 'constant' or"),
        (lambda d: d["workload"][1].update(rate_per_s=3, seed=1), "only an open_loop workload has rate_per_s, seed"),
        (lambda d: d["workload"][0].update(slo={"ttft_ms": 3}), "only an open_loop workload has slo"),
    ],
)
def test_an_impossible_suite_is_refused(workloads: Path, edit: Edit, message: str) -> None:
    """Naming the field."""
    assert message in refusal(edited(workloads, edit))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["warmup"].update(max_blocks=4),
        lambda d: d["warmup"].update(agree_pct=49.0),
        lambda d: d["workload"][0].update(passes=2),
        lambda d: d["workload"][1].update(concurrency=3),
        lambda d: d["workload"][1].update(kind="offline"),
        lambda d: d["workload"][1].update(OPEN_LOOP),
        lambda d: d["workload"][1].update(OPEN_LOOP, rate_per_s=21.0),
        lambda d: d["workload"][1].update(OPEN_LOOP, slo={"ttft_ms": 50}),
        lambda d: d["workload"][1].update(OPEN_LOOP, arrival="poisson"),
        lambda d: d["workload"][1].update(OPEN_LOOP, seed=1),
        lambda d: d.update(dialect="generate"),
        lambda d: d["workload"][1].update(id="vier"),
        lambda d: d["workload"].reverse(),
        lambda d: d["gates"].update(success={}),
        lambda d: d["workload"][0].update(prompts=dict(d["workload"][1]["prompts"])),
    ],
)
def test_changing_anything_changes_the_suites_hash(workloads: Path, edit: Edit) -> None:
    """Rounds of another suite are not comparable."""
    before = load_suite(workloads, "brief").sha256

    assert before != load_suite(edited(workloads, edit), "brief").sha256


def test_changing_a_prompt_changes_the_suites_hash(workloads: Path) -> None:
    """Through the hash of its file."""
    before = load_suite(workloads, "brief").sha256
    path = workloads / "brief" / "one.jsonl"
    old = hashlib.sha256(path.read_bytes()).hexdigest()
    first, *others = prompts.read(path)
    prompts.write(path, [first.model_copy(update={"text": f"{first.text} more"}), *others])
    suite = workloads / "brief" / "suite.toml"
    suite.write_text(suite.read_text().replace(old, hashlib.sha256(path.read_bytes()).hexdigest()))

    assert before != load_suite(workloads, "brief").sha256


def test_words_change_nothing(workloads: Path) -> None:
    """Neither the title nor a comment."""
    before = load_suite(workloads, "brief").sha256
    path = edited(workloads, lambda d: d.update(title="other")) / "brief" / "suite.toml"
    path.write_text("# a comment\n" + path.read_text())

    assert before == load_suite(workloads, "brief").sha256


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_kind_of_workload_has_a_metric_and_a_class(kind: str) -> None:
    """Of the plugins that exist."""
    extra = OPEN_LOOP if kind == "open_loop" else {}
    made = Workload.model_validate({"id": "w", "kind": kind, "prompts": {"file": "f", "sha256": "0"}, **extra})

    assert made.objective in plugins.available(metrics)
    assert set(made.objective_settings) <= set(plugins.load(metrics, made.objective, Metric).model_fields)
    assert ("sequential" if kind == "sequential" else "concurrent") == made.score_class


def test_a_setting_that_a_suite_leaves_out_is_no_part_of_its_hash(workloads: Path) -> None:
    """So a suite keeps its identity, and its history, when `loop` learns another one."""
    suite = load_suite(workloads, "brief").suite
    document = suite.document()

    assert {"dialect", "rate_per_s", "slo"} <= {*document, *document["workload"][0]}
    for part in (document, *document["workload"]):
        for name in [name for name, value in part.items() if value is None or name == "title"]:
            del part[name]
    assert sha256_of(document) == suite.digest()


def test_the_slo_of_a_workload_is_what_its_goodput_asks_for() -> None:
    """What is left out is not asked for."""
    fields = {**OPEN_LOOP, "slo": {"tpot_ms": 20}}
    made = Workload.model_validate({"id": "w", "prompts": {"file": "f", "sha256": "0"}, **fields})

    assert ("goodput", {"tpot_ms": 20.0}) == (made.objective, made.objective_settings)
