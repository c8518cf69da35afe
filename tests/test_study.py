"""The study of what verdicts are worth: its judge is the product's, and its page is not older than the rule."""

import math
import re

import numpy as np
import pytest

from loop import stats
from loop.compare import equal_sessions
from loop.schedule import EXTENDS, ORDERS
from tests.brackets import comparison
from tests.perf import campaign, others, study
from tests.perf.campaign import Noise, promoted_share, run_campaigns, run_round, simulate

QUIET = Noise(0.005)
TYPICAL = Noise(0.01)
ROUGH = Noise(0.01, **study.OUTLIERS)
SEED = 7
LABELS = ("A1", "B1", "A2", "B2", "A3")
PAGE = study.PAGE.read_text(encoding="utf-8")


def sample_of(table: str) -> tuple[int, int]:
    """Candidates in a cell and seed, from the command under a table of the page."""
    found = re.search(rf"--table {table} --num (\d+) --seed (\d+)`", PAGE)
    assert found
    return int(found[1]), int(found[2])


def test_the_simulated_judge_is_the_products() -> None:
    """The very function, and the order of sessions that `loop run` has."""
    assert campaign.estimate is stats.estimate
    assert ORDERS["ababa"] == campaign.ORDER
    assert campaign.ORDER.startswith(ORDERS["aba"])
    assert "aba" in EXTENDS


@pytest.mark.parametrize("history", ["none", "calibrated"])
def test_a_candidate_that_changes_nothing_is_hardly_ever_promoted(history: str) -> None:
    """Even where every tenth session is an outlier."""
    trials = simulate(ROUGH, history, [0.0], num=500, seed=SEED)[0.0]

    assert promoted_share(trials) <= 0.01


def test_a_large_effect_is_found() -> None:
    """Ten per cent on a quiet machine, in two rounds of three sessions."""
    trials = simulate(QUIET, "calibrated", [10.0], num=300, seed=SEED)[10.0]

    assert promoted_share(trials) >= 0.99
    assert campaign.mean_sessions(trials) == pytest.approx(6, abs=0.1)


def test_the_best_of_many_looks_better_than_it_is() -> None:
    """And a fresh round says so."""
    found = run_campaigns(TYPICAL, 0.0, num=60, num_candidates=20, seed=SEED)

    assert np.mean([c.best.effect for c in found]) > 0.015
    assert abs(np.mean([c.again.effect for c in found])) < 0.005


def test_a_test_on_requests_takes_a_sessions_luck_for_an_effect() -> None:
    """Paired by prompt it ships far more nothing than both rounds of ours."""
    false = others.win_share(others.wilcoxon, 0.01, 0.0, num=200, num_each=1, seed=SEED)

    assert false > 0.15


def test_a_hopeless_candidate_gets_no_second_a() -> None:
    """Two sessions, and nothing to learn about noise."""
    found = run_round([0.0, 0.2, 0.0, 0.0, 0.0], 0.0, [])

    assert ("futile", 2, []) == (found.outcome, len(found.values), found.groups)


def test_a_round_whose_baseline_moved_is_invalid_and_teaches_nothing() -> None:
    """As in the ledger."""
    found = run_round([0.0, -0.1, 0.2, 0.0, 0.0], 0.0, [])

    assert ("invalid", 3, []) == (found.outcome, len(found.values), found.groups)


def test_an_undecided_round_adds_what_the_ledger_would_add() -> None:
    """Its As are one group, its Bs another."""
    found = run_round([0.0, -0.012, 0.001, -0.013, 0.002], 0.0, [])
    stored = comparison(sessions={label: math.exp(v) for label, v in zip(LABELS, found.values, strict=True)})

    expected = [pytest.approx(group) for group in equal_sessions([stored], identical=False)["all"]]
    assert expected == found.groups


@pytest.mark.parametrize("name", study.TABLES)
def test_the_page_has_every_table_and_how_it_was_made(name: str) -> None:
    """Between markers that `--write` finds."""
    num, seed = sample_of(name)

    assert num >= 1000
    assert "\nmade\n<!-- end -->" in study.put(PAGE, name, "made")
    assert PAGE.count(f"--seed {seed}`") == len(study.TABLES)


def test_the_page_is_not_older_than_the_rule() -> None:
    """One cell of two tables made anew; if they differ, run `python -m tests.perf.study --write`."""
    false = study.null_cell(ROUGH, "calibrated", *sample_of("null"))
    (real,) = study.power_cells(QUIET.sigma, "calibrated", [3.0], *sample_of("power"))

    assert re.search(rf"\| outlier sessions \| 1 % \|.* {re.escape(' | '.join(false))} \|", PAGE)
    assert re.search(rf"\| calibrated \| 0\.5 % \|.* {re.escape(real)} \|", PAGE)
