"""Caveats: what weakens a comparison, and what to do about it."""

from pathlib import Path

import pytest

from loop.caveats import MIN_REQUESTS, Caveat, find_caveats
from loop.session import Session
from loop.stats import PRIOR_DOF
from tests.brackets import (
    CLEAN,
    CONCURRENT,
    SEQUENTIAL,
    bracket,
    comparison,
    comparisons,
    replies,
    same_session,
    session,
    suite,
    timed_session,
    workload,
)

ARMS = ("A1", "B", "A2")


def found(root: Path, *sessions: Session, **fields: object) -> list[Caveat]:
    """The caveats of these sessions."""
    return list(find_caveats(bracket(root, sessions, **fields)))  # type: ignore[arg-type]


def test_a_clean_round_has_none(tmp_path: Path) -> None:
    """Silence means something."""
    assert [] == found(tmp_path, *(same_session(tmp_path, label) for label in ARMS))


def test_a_warm_up_that_did_not_settle_names_its_sessions(tmp_path: Path) -> None:
    """And what the suite had asked for."""
    restless = [same_session(tmp_path, label, settled=label == "A1", rates=[1.0, 9.0, 2.0]) for label in ARMS]

    (caveat,) = found(tmp_path, *restless, of=suite(agree_pct=5.0))

    assert "warmup_unsettled" == caveat.code
    assert "warm-up did not settle within 5 % in B, A2" == caveat.text
    assert "max_blocks" in caveat.advice


def test_a_session_that_never_warmed_up_has_not_failed_to_settle(tmp_path: Path) -> None:
    """It crashed before."""
    assert [] == found(tmp_path, session(tmp_path, "A1", rates=(), settled=False))


def test_cache_hits_that_differ_are_listed(tmp_path: Path) -> None:
    """Of timed steps only, by session."""

    def hitting(label: str, cached: int) -> Session:
        timed = [replies("one-0", num_cached_tokens=cached)]
        return session(tmp_path, label, check=replies("check", num_cached_tokens=99), timed={SEQUENTIAL: timed})

    (caveat,) = found(tmp_path, hitting("A1", 0), hitting("B", 16), hitting("A2", 0))

    assert "cache_hits_differ" == caveat.code
    assert (
        "cached prompt tokens differ between sessions: A1 0, B 48, A2 0; "
        "B took 100 % more of its prompts from a cache than A"
    ) == caveat.text


def test_cache_hits_that_are_the_same_are_none(tmp_path: Path) -> None:
    """A baseline that hits as often compares fairly."""
    timed = {SEQUENTIAL: [replies("one-0", num_cached_tokens=16)]}

    assert [] == found(tmp_path, *(session(tmp_path, label, timed=timed) for label in ARMS))


def test_a_workload_of_few_requests_is_named(tmp_path: Path) -> None:
    """Passes count: one request three times is enough."""
    few = suite(workload("few"), workload("enough", passes=MIN_REQUESTS), num_prompts=1)

    (caveat,) = found(tmp_path, of=few)

    assert ("few_requests", "few sends fewer than 3 requests") == (caveat.code, caveat.text)


def test_what_survived_its_server_is_listed(tmp_path: Path) -> None:
    """A process by its command line, or an open port."""
    orphan = CLEAN.model_copy(update={"survivors": ("17 python", "18 sleep 60")})
    squatter = CLEAN.model_copy(update={"port_closed": False})

    caveats = found(
        tmp_path,
        same_session(tmp_path, "A1", left=orphan),
        same_session(tmp_path, "B", left=squatter),
        same_session(tmp_path, "A2"),
    )

    assert ["left_behind", "left_behind"] == [caveat.code for caveat in caveats]
    texts = ["session A1 left 17 python; 18 sleep 60 (killed since)", "session B left its port open"]
    assert texts == [caveat.text for caveat in caveats]


def test_servers_that_had_to_be_killed_are_named_together(tmp_path: Path) -> None:
    """Nothing was left behind, and yet a restart would hang."""
    killed = CLEAN.model_copy(update={"returncode": -9, "killed": True})
    sessions = [same_session(tmp_path, label, left=CLEAN if label == "B" else killed) for label in ARMS]

    (caveat,) = found(tmp_path, *sessions)

    assert "killed_at_stop" == caveat.code
    assert "the server did not end on SIGINT and was killed in A1, A2" == caveat.text
    assert "server.log" in caveat.advice


def test_a_server_that_died_left_nothing_behind(tmp_path: Path) -> None:
    """Its crash is in the verdict already."""
    died = CLEAN.model_copy(update={"returncode": 1, "died": True})

    assert [] == found(tmp_path, *(same_session(tmp_path, label, left=died) for label in ARMS))


@pytest.mark.parametrize(
    ("scope", "gain_pct", "slower_ms", "changed"),
    [
        (CONCURRENT, 8.0, 106.0, True),
        (CONCURRENT, 1.0, 106.0, False),
        (CONCURRENT, 8.0, 101.0, False),
        (SEQUENTIAL, 8.0, 106.0, False),
    ],
)
def test_throughput_that_every_token_pays_for_is_another_batch(
    tmp_path: Path, scope: str, gain_pct: float, slower_ms: float, *, changed: bool
) -> None:
    """Of concurrent workloads; both beyond 2 %."""
    sessions = [
        timed_session(tmp_path, label, {SEQUENTIAL: [100.0], CONCURRENT: [100.0 if label != "B" else slower_ms]})
        for label in ARMS
    ]

    caveats = found(tmp_path, *sessions, compared=[comparison(scope, effect_pct=gain_pct)])

    assert (["batching_changed"] if changed else []) == [caveat.code for caveat in caveats]
    if changed:
        assert "four: throughput +8.0 %, but each token takes +6.0 %" == caveats[0].text


def test_a_session_that_was_not_timed_tells_nothing_about_batches(tmp_path: Path) -> None:
    """B crashed."""
    sessions = [same_session(tmp_path, "A1"), session(tmp_path, "B", rates=())]

    assert [] == found(tmp_path, *sessions, compared=[comparison(CONCURRENT, effect_pct=8.0)], of=suite())


def test_they_come_in_a_fixed_order(tmp_path: Path) -> None:
    """So that two reports can be compared."""
    left = CLEAN.model_copy(update={"survivors": ("17 python",), "killed": True})
    timed = {SEQUENTIAL: [replies("one-0", num_cached_tokens=1)], CONCURRENT: [replies("four-0")]}
    sessions = [same_session(tmp_path, "A1"), session(tmp_path, "B", timed=timed, settled=False, left=left)]

    caveats = found(tmp_path, *sessions, of=suite(num_prompts=1))

    codes = ["warmup_unsettled", "cache_hits_differ", "few_requests", "few_requests", "killed_at_stop", "left_behind"]
    assert codes == [caveat.code for caveat in caveats]


def test_noise_that_is_only_believed_is_said_to_be(tmp_path: Path) -> None:
    """Until a calibration or earlier rounds have shown it; a calibration needs no advice to calibrate."""
    sessions = [same_session(tmp_path, label) for label in ("A1", "B", "A2")]
    believed = bracket(tmp_path, sessions, compared=comparisons(dof=PRIOR_DOF))
    seen = bracket(tmp_path, sessions, compared=comparisons(dof=PRIOR_DOF + 2))

    assert ["uncalibrated"] == [caveat.code for caveat in find_caveats(believed)]
    assert [] == list(find_caveats(seen))
    assert [] == list(find_caveats(believed.model_copy(update={"purpose": "calibration"})))


@pytest.mark.parametrize(("earlier", "named"), [((100.0, 101.0), True), ((108.0, 109.0), False), ((), False)])
def test_a_baseline_that_is_slower_than_before_is_named(
    tmp_path: Path, earlier: tuple[float, ...], *, named: bool
) -> None:
    """Beyond what would count as drift within a round: against a slow baseline, anything wins."""
    sessions = [same_session(tmp_path, label) for label in ARMS]
    overall = comparison(sessions={"A1": 110.0, "B": 100.0, "A2": 110.0}, dof=PRIOR_DOF + 2)
    of = bracket(tmp_path, sessions, compared=[overall]).model_copy(update={"earlier": earlier})

    caveats = list(find_caveats(of))

    assert (["baseline_slower"] if named else []) == [caveat.code for caveat in caveats]
    if named:
        said = "the baseline is 9.5 % slower than in 2 earlier sessions; noise explains 2.0 %"
        assert said == caveats[0].text
