"""The gate `canary`: computed answers pass, remembered ones show by their text or by their time."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from loop.gates import Bracket, GateResult
from loop.gates.canary import Canary
from loop.gates.timed_path import TimedPath
from loop.replies import Reply
from loop.session import Session
from tests.brackets import CONCURRENT, SEQUENTIAL, TEXT, bracket, replies, reply, session

WRONG = "something else altogether"
HALF = "one two three four five 6 7 8 9 10"
Answers = Sequence[tuple[str, str, float]]
"""(owner, text, milliseconds) of each canary of a session."""


def answering(
    root: Path, label: str, canaries: Answers, *, others_ms: float = 100.0, text: str = TEXT, workload: str = SEQUENTIAL
) -> Session:
    """A session with these canaries among four others."""
    asked = tuple(
        reply(f"canary-{owner}-{workload}-0-{i:03d}", said, e2e_ms=ms) for i, (owner, said, ms) in enumerate(canaries)
    )
    received: tuple[Reply, ...] = (*replies(f"{workload}-0", [text] * 4, e2e_ms=others_ms), *asked)
    return session(root, label, timed={workload: [received]})


def judged(root: Path, sessions: Sequence[Session], **settings: float) -> GateResult:
    """What the gate says."""
    return Canary(**settings).check(bracket(root, sessions))


def aba(
    root: Path, b: str = TEXT, *, b_ms: float = 100.0, others_ms: float = 100.0, workload: str = SEQUENTIAL
) -> list[Session]:
    """A1, B and A2, whose B answers its canary so."""
    return [
        answering(root, "A1", [("A1", WRONG, 100.0)], workload=workload),
        answering(root, "B", [("B", b, b_ms)], others_ms=others_ms, workload=workload),
        answering(root, "A2", [("B", TEXT, 100.0)], workload=workload),
    ]


def test_computed_answers_pass(tmp_path: Path) -> None:
    """What the first A was asked is no reference: it was another prompt."""
    result = judged(tmp_path, aba(tmp_path))

    assert ("passed", "1 canary answer computed; the lowest mean is 1.000") == (result.outcome, result.text)
    assert {"mean": 1.0, "pace": 1.0} == result.values


def test_a_wrong_answer_is_refused(tmp_path: Path) -> None:
    """With both bars: those of timed answers, less their slack."""
    result = judged(tmp_path, aba(tmp_path, HALF))

    assert ("refused", "canary") == (result.outcome, result.reason)
    assert "one in B: canary answers keep 0.500 (bar 0.92), median 0.500 (bar 0.95)" == result.text
    assert result.worst[0].startswith("canary-B-one-0-000 (0.50) at character 24: ")


def test_concurrent_answers_have_lower_bars(tmp_path: Path) -> None:
    """As for all timed answers."""
    almost = TEXT.replace("ten", "TEN")

    assert "refused" == judged(tmp_path, aba(tmp_path, almost)).outcome
    assert "passed" == judged(tmp_path, aba(tmp_path, almost, workload=CONCURRENT)).outcome


def test_bars_fall_where_the_baseline_does_not_repeat_its_other_answers(tmp_path: Path) -> None:
    """One answer in four of its own parts half way: then so may a canary, where there is but one."""
    sessions = aba(tmp_path, HALF)
    varying = (*replies("one-0", [HALF, TEXT, TEXT, TEXT]), reply("canary-B-one-0-000", TEXT))
    sessions[2] = session(tmp_path, "A2", timed={SEQUENTIAL: [varying]})

    assert "refused" == judged(tmp_path, sessions).outcome
    sessions[2] = session(
        tmp_path, "A2", timed={SEQUENTIAL: [(*replies("one-0", [HALF, WRONG, TEXT, TEXT]), varying[-1])]}
    )
    assert "passed" == judged(tmp_path, sessions).outcome


@pytest.mark.parametrize(
    ("b_ms", "others_ms", "outcome"),
    [
        (100.0, 100.0, "passed"),
        (100.0, 10.0, "refused"),
        (50.0, 50.0, "passed"),
        (149.0, 100.0, "passed"),
        (151.0, 100.0, "refused"),
        (20.0, 1.0, "passed"),
    ],
)
def test_a_canary_that_takes_longer_than_what_was_seen_before_is_refused(
    tmp_path: Path, b_ms: float, others_ms: float, outcome: str
) -> None:
    """By half and by 20 ms, beside what it takes in A; being faster as a whole is no fault."""
    result = judged(tmp_path, aba(tmp_path, b_ms=b_ms, others_ms=others_ms))

    assert (outcome, outcome == "refused") == (result.outcome, result.reason == "canary_slow")


def test_what_was_remembered_is_said_in_words(tmp_path: Path) -> None:
    """Both ratios."""
    result = judged(tmp_path, aba(tmp_path, b_ms=100.0, others_ms=10.0))

    said = "a prompt that nobody has seen takes 10.0 times as long as others of its shape, 1.0 times in A"
    assert f"one in B: {said}: the other answers were remembered" == result.text
    assert {"ratio": 10.0, "excess_ms": 90.0} == result.values


def test_a_canary_is_held_against_its_own_shape(tmp_path: Path) -> None:
    """A candidate that gains on short answers is not slow on long ones."""
    sessions = []
    for label, owner, short_ms in (("A1", "A1", 100.0), ("B", "B", 10.0), ("A2", "B", 100.0)):
        received = (
            *replies("one-0", [TEXT] * 3, e2e_ms=short_ms, num_tokens=4),
            reply("one-0-003", e2e_ms=400.0, num_tokens=64),
            reply(f"canary-{owner}-one-0-000", e2e_ms=400.0, num_tokens=64),
        )
        sessions.append(session(tmp_path, label, timed={SEQUENTIAL: [received]}))

    assert ("passed", 1.0) == ((result := judged(tmp_path, sessions)).outcome, result.values["pace"])


def test_a_canary_may_be_as_slow_as_any_other(tmp_path: Path) -> None:
    """It was early in A's queue, and is not in that of a candidate that sends others first."""
    sessions = [
        answering(tmp_path, "A1", [("A1", TEXT, 100.0)], others_ms=400.0),
        answering(tmp_path, "B", [("B", TEXT, 300.0)], others_ms=300.0),
        answering(tmp_path, "A2", [("B", TEXT, 100.0)], others_ms=400.0),
    ]

    assert "passed" == judged(tmp_path, sessions).outcome


def test_every_b_is_held_against_the_a_after_it(tmp_path: Path) -> None:
    """A server that stored its answers the first time is found the second time, where its canary is new again."""
    sessions = [
        answering(tmp_path, "A1", [("A1", TEXT, 100.0)]),
        answering(tmp_path, "B1", [("B1", TEXT, 100.0)]),
        answering(tmp_path, "A2", [("B1", TEXT, 100.0)]),
        answering(tmp_path, "B2", [("B2", TEXT, 100.0)], others_ms=5.0),
        answering(tmp_path, "A3", [("B2", TEXT, 100.0)]),
    ]

    result = judged(tmp_path, sessions)

    assert ("refused", "canary_slow") == (result.outcome, result.reason)
    assert result.text.startswith("one in B2: ")


def test_two_bs_in_a_row_share_the_a_after_them(tmp_path: Path) -> None:
    """It repeats what each of them was asked."""
    sessions = [
        answering(tmp_path, "A1", [("A1", TEXT, 100.0)] * 2),
        answering(tmp_path, "B1", [("B1", TEXT, 100.0)] * 2),
        answering(tmp_path, "B2", [("B2", WRONG, 100.0)] * 2),
        answering(tmp_path, "A2", [("B1", TEXT, 100.0), ("B2", TEXT, 100.0)]),
    ]

    result = judged(tmp_path, sessions)

    assert ("refused", "canary") == (result.outcome, result.reason)
    assert result.text.startswith("one in B2: canary answers keep 0.000")


def test_failures_are_left_to_success(tmp_path: Path) -> None:
    """Of either arm."""
    sessions = aba(tmp_path)
    failed = reply("canary-B-one-0-000", "", failure="reset", last_ns=None)
    sessions[1] = session(tmp_path, "B", timed={SEQUENTIAL: [(*replies("one-0", [TEXT] * 4), failed)]})

    assert "no canaries were sent" == judged(tmp_path, sessions).text


def test_a_round_without_canaries_passes(tmp_path: Path) -> None:
    """An old one, and one whose B was not timed."""
    old = [session(tmp_path, label, timed={SEQUENTIAL: [replies("one-0")]}) for label in ("A1", "B", "A2")]
    untimed = [session(tmp_path, label, check=replies("check")) for label in ("A1", "B", "A2")]
    for sessions in (old, untimed, []):
        assert ("passed", "no canaries were sent") == ((r := judged(tmp_path, sessions)).outcome, r.text)


def test_canaries_do_not_count_as_timed_answers(tmp_path: Path) -> None:
    """The first A had others."""
    of: Bracket = bracket(tmp_path, aba(tmp_path, WRONG, workload=SEQUENTIAL))
    only = of.model_copy(update={"suite": of.suite.model_copy(update={"suite": _first_workload(of)})})

    assert "passed" == TimedPath().check(only).outcome


def _first_workload(of: Bracket) -> object:
    declared = of.suite.suite
    return declared.model_copy(update={"workload": declared.workload[:1]})
