"""How long a round will take: what was stored says it better than constants."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop.ledger import EngineRef, Failure, Ledger, ModelRef, Round, SuiteRef
from loop.plan import Options, Plan, make_plan
from loop.prediction import Prediction, predict
from loop.session import Crash, Session
from loop.workspace import Workspace
from tests.brackets import closed_round, session, stored_round
from tests.conftest import Answer

PHASES = {"launch": 4.0, "warmup": 3.0, "check": 2.0, "timed": 10.0, "stop": 1.0, "overhead": 0.5}
CRASH = Crash(stage="traffic", message="ended", log_tail="")
FAR = "0" * 64

Store = Callable[..., Round]


@pytest.fixture
def plan(workspace: Workspace) -> Plan:
    """A round of three sessions that could start."""
    return make_plan(workspace, "noop", Options())


@pytest.fixture
def store(plan: Plan) -> Store:
    """A function that stores a closed round of the plan's own kind; `fields` replace what they name."""

    def store_(*sessions: Session, number: int = 1, **fields: Any) -> Round:
        alike = {
            "fingerprint": plan.fingerprint,
            "host": plan.host,
            "engine": EngineRef(name=plan.engine.name, version=plan.engine_version, python="python3"),
            "model": ModelRef(path="elsewhere", sha256=plan.model_sha256),
            "suite": SuiteRef(id=plan.suite.id, sha256=plan.suite.sha256),
        }
        round_ = closed_round(f"R{number:06d}-abcd", sessions=sessions, **{**alike, **fields})
        Ledger(plan.workspace.ledger).write(round_)
        return round_

    return store_


def timed(label: str = "A1", *, crash: Crash | None = None, **phases_s: float) -> Session:
    """A session that took these seconds."""
    seen = session(Path(), label, crash=crash)
    return seen.model_copy(update={"phases_s": {**PHASES, **phases_s}})


def told(prediction: Prediction) -> tuple[int, str]:
    """From how many rounds, in which words."""
    return prediction.num_rounds, prediction.basis


def test_an_empty_ledger_leaves_a_guess(plan: Plan) -> None:
    """And says that it is one."""
    found = predict(plan)

    assert (0, "a guess: no such round is stored") == told(found)
    assert set(PHASES) == set(found.phases_s)
    assert 3 * sum(found.phases_s.values()) == pytest.approx(found.total_s)


def test_a_round_like_it_is_believed(plan: Plan, store: Store) -> None:
    """Phase by phase."""
    store(timed("A1"), timed("B"), timed("A2"))

    found = predict(plan)

    assert (1, "from 1 round like this one") == told(found)
    assert found.phases_s == PHASES
    assert pytest.approx(3 * 20.5) == found.total_s


def test_each_phase_is_the_median_over_the_sessions_of_all_rounds(plan: Plan, store: Store) -> None:
    """One slow start does not count for much."""
    store(timed("A1", launch=90.0), timed("B", launch=5.0), number=1)
    store(timed("A1", launch=6.0), number=2)

    found = predict(plan)

    assert (2, "from 2 rounds like this one") == told(found)
    assert {**PHASES, "launch": 6.0} == found.phases_s


def test_the_same_work_on_this_machine_is_second_best(plan: Plan, store: Store) -> None:
    """Another kernel or engine version is another fingerprint, and still a better guide than constants."""
    store(timed("A1"), fingerprint=FAR)

    found = predict(plan)

    assert (1, "from 1 round with this engine, model and suite on this machine") == told(found)
    assert found.phases_s == PHASES


def test_the_same_fingerprint_comes_before_the_same_work(plan: Plan, store: Store) -> None:
    """What is not comparable is not mixed in."""
    store(timed("A1", timed=500.0), number=1, fingerprint=FAR)
    store(timed("A1"), number=2)

    found = predict(plan)

    assert ((1, "from 1 round like this one"), PHASES) == (told(found), found.phases_s)


@pytest.mark.parametrize(
    "other",
    [
        {"engine": EngineRef(name="another", version="1", python="python3")},
        {"model": ModelRef(path="elsewhere", sha256=FAR)},
        {"suite": SuiteRef(id="brief", sha256=FAR)},
        {"host": stored_round().host},
    ],
)
def test_other_work_says_nothing(plan: Plan, store: Store, other: dict[str, Any]) -> None:
    """Nor does another machine."""
    store(timed("A1"), fingerprint=FAR, **other)

    assert 0 == predict(plan).num_rounds


def test_a_session_that_crashed_says_nothing(plan: Plan, store: Store) -> None:
    """Its phases were cut short."""
    store(timed("A1"), timed("B", launch=600.0, crash=CRASH), number=1)
    store(timed("A1", launch=600.0, crash=CRASH), number=2)

    found = predict(plan)

    assert (1, PHASES) == (found.num_rounds, found.phases_s)


def test_what_was_skipped_is_guessed(plan: Plan, store: Store) -> None:
    """A candidate that was refused was never timed."""
    refused = timed("B")
    phases_s = {name: seconds for name, seconds in PHASES.items() if name != "timed"}
    guess = predict(plan).phases_s["timed"]
    store(refused.model_copy(update={"phases_s": phases_s}))

    assert {**PHASES, "timed": guess} == predict(plan).phases_s


def test_a_round_that_failed_says_what_its_sessions_took(plan: Plan, store: Store) -> None:
    """Those that it finished are whole."""
    store(timed("A1"), verdict=None, failure=Failure(kind="interrupted", message="x"))

    assert 1 == predict(plan).num_rounds


def test_a_running_round_says_nothing_yet(plan: Plan, store: Store) -> None:
    """It may be this machine's only one, and still be slow to start."""
    open_ = {"status": "running", "closed_utc": None, "secret_hex": None, "verdict": None}
    store(timed("A1"), **open_)

    assert 0 == predict(plan).num_rounds


def test_the_command_says_from_what(store: Store, loop: Callable[..., Answer]) -> None:
    """As text and as JSON."""
    store(timed("A1"))

    shown = loop("plan", "noop")
    document = json.loads(loop("plan", "noop", "--json").stdout)

    assert "about 1.0 minutes (from 1 round like this one)" in " ".join(shown.stdout.split())
    assert (61.5, 1) == (document["predicted_s"], document["predicted_from_rounds"])
