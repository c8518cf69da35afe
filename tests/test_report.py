"""A round's page: what it says of rounds that failed and of servers that did not end well."""

import re
from pathlib import Path
from typing import Any

import pytest

from loop.ledger import Failure, Round
from loop.report import render_round, summarize
from loop.session import Crash
from tests.brackets import CLEAN, closed_round, comparisons, same_session, session, stored_round


def failed(kind: str, **fields: Any) -> str:
    """The page of a round that failed."""
    return render_round(closed_round(verdict=None, failure=Failure(kind=kind, message="why"), **fields))


def exits(page: str) -> list[str]:
    """The last column of the table of sessions."""
    return re.findall(r"^\| (?:A\d|B) \|.*\| ([^|]+) \|$", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        ("interrupted", ""),
        ("killed", ""),
        ("environment", ", once that is mended"),
        ("internal", "; if it fails again, that is a bug of `loop`"),
    ],
)
def test_a_failed_round_says_why_and_what_to_type_next(kind: str, condition: str) -> None:
    """The command it was started with, so that no option is lost."""
    page = failed(kind, argv=("run", "idea", "--suite", "by hand"))

    assert f"**no verdict** ({kind}): why" in page
    assert f"Next: `loop run idea --suite 'by hand'`{condition}." in page


def test_a_round_that_no_command_started_is_tried_again_by_its_bundle() -> None:
    """A program called `run_round`."""
    assert "Next: `loop run idea`." in failed("killed", argv=())


def test_a_failed_round_shows_the_sessions_it_has(tmp_path: Path) -> None:
    """Or says that it has none."""
    some = failed("interrupted", sessions=(same_session(tmp_path, "A1"),))

    assert ["clean"] == exits(some)
    assert "None was finished." in failed("interrupted")


def test_what_is_not_known_of_a_killed_round_is_not_a_zero() -> None:
    """Nobody measured how long it ran."""
    assert "| closed | 2026-01-01T00:05:00.000Z |" in failed("killed")
    assert "| closed | 2026-01-01T00:05:00.000Z, after 7 s |" in failed("interrupted", wall_s=7.2)


def test_a_running_round_has_no_verdict_yet() -> None:
    """Whoever looks early is told so."""
    assert "**running** since 2026-01-01T00:00:00.000Z" in render_round(stored_round())


def test_every_server_is_shown_as_it_ended(tmp_path: Path) -> None:
    """`clean` is only what ended when asked to, and left nothing."""
    crash = Crash(stage="traffic", message="ended with exit code -11", log_tail="")
    died = CLEAN.model_copy(update={"returncode": -11, "died": True})
    killed = CLEAN.model_copy(update={"returncode": -9, "killed": True})
    sessions = (
        same_session(tmp_path, "A1"),
        session(tmp_path, "B", crash=crash, left=died),
        same_session(tmp_path, "A2", left=killed),
    )

    assert ["clean", "died of SIGSEGV", "killed"] == exits(render_round(closed_round(sessions=sessions)))


def test_a_confirmation_takes_the_place_of_the_win_that_it_confirms() -> None:
    """Of many tries the best looks better than it is; an unconfirmed win says that it is one."""
    won = closed_round("R000001-aaaa", "improved", comparisons=comparisons(30.0))
    fresh = closed_round(
        "R000002-aaaa", "improved", comparisons=comparisons(20.0), purpose="confirmation", confirms=won.id
    )
    lost = closed_round("R000002-aaaa", "inconclusive", purpose="confirmation", confirms=won.id)

    def best(*rounds: Round) -> list[tuple[str, float, bool]]:
        found = summarize(rounds).best
        return [(item.round, item.speedup, item.confirmed) for item in found if item.score_class == "sequential"]

    assert [(won.id, 1.3, False)] == best(won)
    assert [(fresh.id, 1.2, True)] == best(won, fresh)
    assert [] == best(won, lost)


def test_a_calibration_is_no_attempt() -> None:
    """A against A that came out worse did not fail to improve anything."""
    assert {} == summarize([closed_round(outcome="inconclusive", purpose="calibration")]).failures
