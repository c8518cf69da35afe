"""Caveats: what weakens a comparison, and what to do about it."""

from pathlib import Path

from loop.caveats import MIN_REQUESTS, Caveat, find_caveats
from loop.session import Session
from tests.brackets import CLEAN, CONCURRENT, SEQUENTIAL, bracket, replies, same_session, session, suite, workload

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
    assert "cached prompt tokens differ between sessions: A1 0, B 48, A2 0" == caveat.text


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


def test_they_come_in_a_fixed_order(tmp_path: Path) -> None:
    """So that two reports can be compared."""
    left = CLEAN.model_copy(update={"survivors": ("17 python",)})
    timed = {SEQUENTIAL: [replies("one-0", num_cached_tokens=1)], CONCURRENT: [replies("four-0")]}
    sessions = [same_session(tmp_path, "A1"), session(tmp_path, "B", timed=timed, settled=False, left=left)]

    caveats = found(tmp_path, *sessions, of=suite(num_prompts=1))

    codes = ["warmup_unsettled", "cache_hits_differ", "few_requests", "few_requests", "left_behind"]
    assert codes == [caveat.code for caveat in caveats]
