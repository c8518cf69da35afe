"""Each gate: what passes, what is refused, where it cannot tell, and the numbers in its words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loop.content import Numerics
from loop.gates import GateResult
from loop.gates.config import Config
from loop.gates.prefix_match import PrefixMatch
from loop.gates.regression import Regression
from loop.gates.success import Success
from loop.gates.timed_path import TimedPath
from loop.replies import Reply
from loop.session import Session
from tests.brackets import (
    CONCURRENT,
    SEQUENTIAL,
    TEXT,
    bracket,
    comparison,
    comparisons,
    effective,
    replies,
    reply,
    same_session,
    session,
    suite,
    workload,
)

WRONG = "something else altogether"
HALF = "one two three four five 6 7 8 9 10"
ALMOST = TEXT.replace("ten", "TEN")


def verdict(result: GateResult) -> tuple[str, str]:
    """Outcome and reason."""
    return result.outcome, result.reason


# success


def failing(root: Path, label: str, *failures: str | None) -> Session:
    """A session whose requests to one workload failed like this, after a check without failures."""
    received = [
        item.model_copy(update={"failure": failure, "error": "why" if failure else ""})
        for item, failure in zip(replies("one-0", [TEXT] * len(failures)), failures, strict=True)
    ]
    return session(root, label, check=replies("check"), timed={SEQUENTIAL: [received]})


def test_success_passes_when_every_request_did(tmp_path: Path) -> None:
    """Of every session and step."""
    sessions = [same_session(tmp_path, label) for label in ("A1", "B", "A2")]

    result = Success().check(bracket(tmp_path, sessions))

    assert ("passed", "success") == verdict(result)
    assert "all 27 requests succeeded" == result.text


def test_success_refuses_a_candidate_with_a_failed_request(tmp_path: Path) -> None:
    """With the count of each kind, and the first of them in words."""
    b = failing(tmp_path, "B", None, "reset", "idle_timeout", "reset")

    result = Success().check(bracket(tmp_path, [same_session(tmp_path, "A1"), b]))

    assert ("refused", "requests_failed") == verdict(result)
    assert "the candidate's session B failed 3 of 7 requests (1 idle_timeout, 2 reset)" == result.text
    assert ("one-0-001: reset: why", "one-0-002: idle_timeout: why", "one-0-003: reset: why") == result.worst


def test_success_lists_ten_failures_at_most(tmp_path: Path) -> None:
    """The rest is in the raw data."""
    b = failing(tmp_path, "B", *["connect"] * 30)

    assert 10 == len(Success().check(bracket(tmp_path, [same_session(tmp_path, "A1"), b])).worst)


@pytest.mark.parametrize("label", ["A1", "A2"])
def test_success_cannot_judge_beside_a_broken_baseline(tmp_path: Path, label: str) -> None:
    """Also where the candidate failed."""
    sessions = [failing(tmp_path, "B", "reset"), failing(tmp_path, label, "reset", None)]

    result = Success().check(bracket(tmp_path, sessions))

    assert ("uninformative", "baseline_broken") == verdict(result)
    assert f"the baseline's session {label} failed 1 of 5 requests (1 reset)" == result.text


# prefix_match


def answered(
    root: Path,
    a1: Sequence[str],
    b: Sequence[str],
    a2: Sequence[str] | None = None,
    *,
    numerics: Numerics = "near",
    **settings: Any,
) -> GateResult:
    """What `prefix_match` says of these correctness answers."""
    arms = {"A1": a1, "B": b, **({} if a2 is None else {"A2": a2})}
    sessions = [session(root, label, check=replies("check", texts)) for label, texts in arms.items()]
    candidate = effective("idea", args={"inert-number": 3}, numerics=numerics)
    return PrefixMatch(**settings).check(bracket(root, sessions, candidate=candidate))


def test_prefix_match_passes_equal_answers(tmp_path: Path) -> None:
    """With every number beside the bar."""
    result = answered(tmp_path, [TEXT] * 4, [TEXT] * 4, [TEXT] * 4)

    assert ("passed", "prefix_match") == verdict(result)
    assert "1.000 of the baseline's answers kept (bar 0.95; the baseline keeps 1.000 of its own)" == result.text
    assert {"mean": 1.0, "bar": 0.95, "self_match": 1.0, "share_equal": 1.0} == result.values


def test_prefix_match_refuses_below_the_bar_and_shows_the_worst_first(tmp_path: Path) -> None:
    """Where each text parts, worst first."""
    result = answered(tmp_path, [TEXT] * 4, [TEXT, HALF, WRONG, ALMOST], [TEXT] * 4)

    assert ("refused", "prefix_match") == verdict(result)
    assert "0.600 of the baseline's answers kept (bar 0.95; the baseline keeps 1.000 of its own)" == result.text
    assert 0.25 == result.values["share_equal"]
    assert ["check-002 (0.00)", "check-001 (0.50)", "check-003 (0.90)"] == [text[:16] for text in result.worst[:3]]
    assert result.worst[0].endswith(f"at character 0: {TEXT[:24]!r} became {WRONG[:24]!r}")


def test_prefix_match_allows_what_the_bar_allows(tmp_path: Path) -> None:
    """Half of the answers with one word in ten changed: 0.95."""
    assert "passed" == answered(tmp_path, [TEXT] * 2, [TEXT, ALMOST], [TEXT] * 2).outcome
    assert "refused" == answered(tmp_path, [TEXT] * 3, [TEXT, ALMOST, ALMOST], [TEXT] * 3).outcome


def test_prefix_match_asks_more_of_a_bundle_that_claims_to_be_exact(tmp_path: Path) -> None:
    """At most two hundredths below the baseline's match with itself."""
    a, b = [TEXT] * 4, [TEXT, TEXT, TEXT, ALMOST]

    assert ("passed", 0.95) == (
        (near := answered(tmp_path, a, b, a, numerics="near")).outcome,
        near.values["bar"],
    )
    result = answered(tmp_path, a, b, a, numerics="exact")
    assert "refused" == result.outcome
    assert "0.975 of the baseline's answers kept (bar 0.98; the baseline keeps 1.000 of its own)" == result.text


def test_prefix_match_follows_a_baseline_that_is_not_exact_itself(tmp_path: Path) -> None:
    """An exact candidate need not be better than the baseline is."""
    a1, b, a2 = [TEXT] * 4, [TEXT, TEXT, TEXT, ALMOST], [TEXT, TEXT, TEXT, ALMOST]

    result = answered(tmp_path, a1, b, a2, numerics="exact")

    assert ("passed", 0.975) == (result.outcome, result.values["self_match"])
    assert result.values["bar"] == pytest.approx(0.955)


def test_prefix_match_cannot_judge_beside_a_baseline_that_does_not_repeat_itself(tmp_path: Path) -> None:
    """Whether the candidate matches or not."""
    for b in (TEXT, WRONG):
        result = answered(tmp_path, [TEXT] * 2, [b] * 2, [HALF] * 2)

        assert ("uninformative", "unstable") == verdict(result)
        assert "the baseline does not repeat itself: 0.500" == result.text


def test_prefix_match_judges_before_the_last_baseline_is_there(tmp_path: Path) -> None:
    """So that a wrong candidate is not timed at all."""
    assert ("refused", "passed") == (
        answered(tmp_path, [TEXT] * 2, [WRONG] * 2).outcome,
        answered(tmp_path, [TEXT] * 2, [TEXT] * 2).outcome,
    )


def test_prefix_match_without_answers_cannot_tell(tmp_path: Path) -> None:
    """Of one arm or both."""
    a = session(tmp_path, "A1", check=replies("check"))
    for sessions in ([], [a], [a, session(tmp_path, "B")]):
        assert ("uninformative", "no_answers") == verdict(PrefixMatch().check(bracket(tmp_path, sessions)))


def test_prefix_match_compares_by_request_and_not_by_place(tmp_path: Path) -> None:
    """A candidate that answers in another order has answered the same."""
    received = replies("check", [TEXT, HALF, WRONG])
    sessions = [session(tmp_path, "A1", check=received), session(tmp_path, "B", check=received[::-1])]

    assert 1.0 == PrefixMatch().check(bracket(tmp_path, sessions)).values["mean"]


def test_prefix_match_counts_an_answer_that_never_came_as_wrong(tmp_path: Path) -> None:
    """Leaving out the hard prompts must not raise the mean."""
    sessions = [
        session(tmp_path, "A1", check=replies("check", [TEXT] * 4)),
        session(tmp_path, "B", check=replies("check", [TEXT, "", "", ""])),
    ]

    result = PrefixMatch().check(bracket(tmp_path, sessions))

    assert ("refused", 0.25) == (result.outcome, result.values["mean"])


def test_prefix_match_takes_its_bar_from_the_suite(tmp_path: Path) -> None:
    """`[gates.prefix_match] min_mean = 0.5`."""
    texts = ([TEXT] * 2, [HALF] * 2, [TEXT] * 2)

    assert ("refused", "passed") == (
        answered(tmp_path, *texts).outcome,
        answered(tmp_path, *texts, min_mean=0.5).outcome,
    )


def held(visible: Sequence[str], heldback: Sequence[str]) -> tuple[Reply, ...]:
    """Answers to visible prompts and, after them, to held-back ones."""
    return (*replies("check", visible), *replies("heldback", heldback))


def confirmed(root: Path, b: tuple[Reply, ...], a2: tuple[Reply, ...] | None = None) -> GateResult:
    """What `prefix_match` says of a B where A answered eight visible and two held-back prompts right."""
    right = held([TEXT] * 8, [TEXT] * 2)
    sessions = [session(root, label, check=got) for label, got in (("A1", right), ("B", b), ("A2", a2 or right))]
    return PrefixMatch().check(bracket(root, sessions))


def test_prefix_match_shows_held_back_answers_apart(tmp_path: Path) -> None:
    """With their own mean and bar."""
    result = confirmed(tmp_path, held([TEXT] * 8, [TEXT] * 2))

    kept = "answers kept (bar 0.98; the baseline keeps 1.000 of its own)"
    assert f"1.000 of the baseline's visible {kept}; 1.000 of the baseline's held-back {kept}" == result.text
    assert (1.0, 1.0, 1.0) == tuple(result.values[n] for n in ("mean", "visible_mean", "heldback_mean"))


@pytest.mark.parametrize(
    ("b", "means"),
    [(held([TEXT] * 8, [TEXT, HALF]), (1.0, 0.75)), (held([TEXT] * 7 + [HALF], [TEXT] * 2), (0.9375, 1.0))],
)
def test_prefix_match_must_hold_for_each_part_alone(
    tmp_path: Path, b: tuple[Reply, ...], means: tuple[float, float]
) -> None:
    """Eight prompts that everybody knows do not make up for one that nobody knew."""
    result = confirmed(tmp_path, b)

    assert ("refused", "prefix_match") == verdict(result)
    assert means == (result.values["visible_mean"], result.values["heldback_mean"])
    assert "(0.50)" in result.worst[0]


def test_prefix_match_cannot_judge_beside_a_baseline_that_does_not_repeat_its_held_back_answers(
    tmp_path: Path,
) -> None:
    """Whatever it does with the visible ones."""
    right = held([TEXT] * 8, [TEXT] * 2)

    result = confirmed(tmp_path, right, held([TEXT] * 8, [HALF] * 2))

    assert ("uninformative", "unstable") == verdict(result)


def test_prefix_match_asks_every_b(tmp_path: Path) -> None:
    """The second one may have been told that it is checked."""
    texts = {"A1": TEXT, "B1": TEXT, "A2": TEXT, "B2": WRONG, "A3": TEXT}
    sessions = [session(tmp_path, label, check=replies("check", [text])) for label, text in texts.items()]

    assert ("refused", "prefix_match") == verdict(PrefixMatch().check(bracket(tmp_path, sessions)))


# timed_path


def timed(
    root: Path,
    texts: dict[str, dict[str, Sequence[str]]],
    tokens: dict[str, int] | None = None,
    **settings: Any,
) -> GateResult:
    """What `timed_path` says of these timed answers: workload → label → texts."""
    sessions = [
        session(
            root,
            label,
            timed={
                name: [replies(f"{name}-0", arms[label], num_tokens=(tokens or {}).get(label, 10))]
                for name, arms in texts.items()
                if label in arms
            },
        )
        for label in ("A1", "B", "A2")
    ]
    return TimedPath(**settings).check(bracket(root, sessions))


def arms(
    b: Sequence[str], a1: Sequence[str] | None = None, a2: Sequence[str] | None = None
) -> dict[str, Sequence[str]]:
    """Texts of three sessions; the baseline's are right unless given."""
    right = [TEXT] * len(b)
    return {"A1": a1 or right, "B": b, "A2": a2 or right}


RIGHT = arms([TEXT] * 4)


def test_timed_path_passes_equal_answers(tmp_path: Path) -> None:
    """Of every workload."""
    result = timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: RIGHT})

    assert ("passed", "timed_path") == verdict(result)
    assert "every workload's timed answers match; the lowest mean is 1.000" == result.text


@pytest.mark.parametrize("workload_id", [SEQUENTIAL, CONCURRENT])
def test_timed_path_refuses_wrong_answers_of_any_workload(tmp_path: Path, workload_id: str) -> None:
    """With the workload's name and both bars."""
    result = timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: RIGHT, workload_id: arms([HALF] * 4)})

    bars = {SEQUENTIAL: ("0.95", "0.97"), CONCURRENT: ("0.85", "0.90")}[workload_id]
    assert ("refused", "timed_path") == verdict(result)
    assert f"{workload_id}: timed answers keep 0.500 (bar {bars[0]}), median 0.500 (bar {bars[1]})" == result.text
    assert 4 == len(result.worst)
    assert result.worst[0].startswith(f"{workload_id}-0-000 (0.50) at character 24: ")


def test_timed_path_is_more_patient_under_load(tmp_path: Path) -> None:
    """Batch composition alone changes greedy output."""
    slightly = arms([ALMOST] * 4)

    assert "refused" == timed(tmp_path, {SEQUENTIAL: slightly, CONCURRENT: RIGHT}).outcome
    assert "passed" == timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: slightly}).outcome


def test_timed_path_looks_at_the_median_too(tmp_path: Path) -> None:
    """A mean alone would let half of the answers be wrong a little."""
    mostly = arms([TEXT] * 2 + [ALMOST] * 3)

    result = timed(tmp_path, {SEQUENTIAL: mostly, CONCURRENT: arms([TEXT] * 5)}, sequential_mean=0.5)

    assert ("refused", 0.9) == (result.outcome, result.values["median"])


def test_timed_path_follows_a_baseline_that_varies_under_load(tmp_path: Path) -> None:
    """Three hundredths below the baseline's own match, where that is lower than the bar."""
    varying = arms([HALF, TEXT, TEXT, TEXT], a2=[HALF, TEXT, TEXT, HALF])

    result = timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: varying})

    assert "passed" == result.outcome
    assert 0.875 == result.values["mean"]


@pytest.mark.parametrize(("tokens", "ratio"), [(9, "0.90"), (11, "1.10"), (5, "0.50")])
def test_timed_path_refuses_answers_of_another_length(tmp_path: Path, tokens: int, ratio: str) -> None:
    """Shorter is less work, longer is padding."""
    result = timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: RIGHT}, {"B": tokens})

    assert ("refused", "length_ratio") == verdict(result)
    assert f"one: timed answers are {ratio} times as long as the baseline's" == result.text


def test_timed_path_cannot_judge_beside_a_baseline_below_the_floor(tmp_path: Path) -> None:
    """Seven tenths of its own answers at least."""
    result = timed(tmp_path, {SEQUENTIAL: arms([TEXT] * 4, a2=[HALF] * 4), CONCURRENT: RIGHT})

    assert ("uninformative", "unstable") == verdict(result)
    assert "one: the baseline repeats only 0.500 of its timed answers" == result.text


@pytest.mark.parametrize("missing", ["A1", "B", "A2"])
def test_timed_path_cannot_tell_what_was_not_timed(tmp_path: Path, missing: str) -> None:
    """In all three sessions."""
    texts = {label: right for label, right in RIGHT.items() if label != missing}

    result = timed(tmp_path, {SEQUENTIAL: RIGHT, CONCURRENT: texts})

    assert ("uninformative", "not_timed") == verdict(result)
    assert "four was not timed in both arms" == result.text


Times = dict[str, Sequence[Reply]]


def counted(root: Path, timed_replies: Times, *, accept_length: float | None = None) -> GateResult:
    """What `timed_path` says of these sessions of one workload; A is right unless given. B may have accepted drafts."""
    right = replies("one-0", [TEXT] * 4)
    labels = ("A1", *(label for label in timed_replies if label.startswith("B")), "A2")
    sessions = [session(root, label, timed={SEQUENTIAL: [timed_replies.get(label, right)]}) for label in labels]
    sessions[1] = sessions[1].model_copy(update={"accept_length": accept_length})
    return TimedPath().check(bracket(root, sessions, of=suite(workload(SEQUENTIAL))))


def test_timed_path_refuses_another_number_of_prompt_tokens(tmp_path: Path) -> None:
    """Of a single request: a sum could hide it."""
    b = [*replies("one-0", [TEXT] * 2), *(reply(f"one-0-00{i}", num_prompt_tokens=n) for i, n in ((2, 15), (3, 17)))]

    result = counted(tmp_path, {"B": b})

    assert ("refused", "prompts_differ") == verdict(result)
    assert "one: one-0-002 had 15 prompt tokens, 16 in A" == result.text


def test_timed_path_refuses_a_few_short_answers_among_long_ones(tmp_path: Path) -> None:
    """Their sum is right."""
    lengths = [4, 12, 12, 12]
    b = [reply(f"one-0-00{i}", num_tokens=length) for i, length in enumerate(lengths)]

    result = counted(tmp_path, {"B": b})

    assert ("refused", "short_answers") == verdict(result)
    assert "one: 25 % of the timed answers are less than half as long as the baseline's" == result.text


def test_timed_path_refuses_answers_that_end_for_other_reasons(tmp_path: Path) -> None:
    """Unless the baseline's own do."""
    b = [*replies("one-0", [TEXT] * 3), reply("one-0-003", finish_reason="stop")]

    result = counted(tmp_path, {"B": b})

    assert ("refused", "finish_reason") == verdict(result)
    assert "one: the share of answers that end with length differs by 25 %" == result.text
    assert "passed" == counted(tmp_path, {"B": b, "A2": b}).outcome


def test_timed_path_holds_the_servers_counts_against_the_ids_it_sent(tmp_path: Path) -> None:
    """Who counts more than was sent has more tokens per second; where A counts so too, it is no candidate's fault."""
    right = replies("one-0", [TEXT] * 4, output_ids=tuple(range(10)))
    padded = replies("one-0", [TEXT] * 4, output_ids=tuple(range(9)))

    result = counted(tmp_path, {"A1": right, "B": padded, "A2": right})

    assert ("refused", "usage_differs") == verdict(result)
    assert "one: the server's counts differ by 11 % from the token ids it sent" == result.text
    assert "passed" == counted(tmp_path, {"A1": right, "B": right, "A2": right}).outcome
    assert "passed" == counted(tmp_path, {"A1": padded, "B": padded, "A2": padded}).outcome


def test_timed_path_refuses_tokens_that_were_held_back(tmp_path: Path) -> None:
    """Many in one event, where no drafts explain it."""
    held_tokens = replies("one-0", [TEXT] * 4, num_chunks=2)

    result = counted(tmp_path, {"B": held_tokens})

    assert ("refused", "coalesced") == verdict(result)
    assert "one: 5.0 times as many tokens come in one event as in A" == result.text
    assert "passed" == counted(tmp_path, {"B": held_tokens}, accept_length=3.0).outcome


def test_timed_path_asks_every_b(tmp_path: Path) -> None:
    """And names the one that failed."""
    right, wrong = replies("one-0", [TEXT] * 4), replies("one-0", [HALF] * 4)

    result = counted(tmp_path, {"B1": right, "B2": wrong})

    assert ("refused", "timed_path") == verdict(result)
    assert result.text.startswith("one in B2: timed answers keep 0.500")


def test_timed_path_takes_its_bars_from_the_suite(tmp_path: Path) -> None:
    """Every one of them."""
    loose: dict[str, Any] = {"sequential_mean": 0.5, "sequential_median": 0.5}

    assert "passed" == timed(tmp_path, {SEQUENTIAL: arms([HALF] * 4), CONCURRENT: RIGHT}, **loose).outcome


# config


def configured(
    root: Path,
    a1: dict[str, Any] | None,
    b: dict[str, Any] | None,
    a2: dict[str, Any] | None = None,
    *,
    b2: dict[str, Any] | None = None,
    asked: dict[str, Any] | None = None,
    derived: dict[str, frozenset[str]] | None = None,
) -> GateResult:
    """What `config` says of these resolved settings, when the candidate asked for `asked`."""
    more = () if b2 is None else (("B2", b2),)
    sessions = [
        session(root, label, info=info or {}).model_copy(update={"info": info})
        for label, info in (("A1", a1), ("B", b), *more, ("A2", a1 if a2 is None else a2))
    ]
    candidate = effective("idea", args=asked or {}, asked=asked or {})
    return Config().check(bracket(root, sessions, candidate=candidate, derived=derived))


BASE = {"steps": 1, "graph": True, "page": 16}


def test_config_passes_what_was_asked_for(tmp_path: Path) -> None:
    """And counts it."""
    result = configured(tmp_path, BASE, {**BASE, "steps": 4}, asked={"steps": 4})

    assert ("passed", "config") == verdict(result)
    assert "1 setting changed, as asked for" == result.text


def test_config_passes_when_nothing_differs(tmp_path: Path) -> None:
    """A bundle of environment variables changes no setting."""
    assert "no setting differs" == configured(tmp_path, BASE, BASE).text


def test_config_refuses_what_was_not_asked_for(tmp_path: Path) -> None:
    """Each with its old and its new value."""
    result = configured(tmp_path, BASE, {**BASE, "steps": 4, "page": 64, "graph": False}, asked={"steps": 4})

    assert ("refused", "unasked_config") == verdict(result)
    assert "got unasked: graph True -> False, page 16 -> 64" == result.text


def test_config_refuses_a_setting_that_came_or_went(tmp_path: Path) -> None:
    """Absent is a value too."""
    result = configured(tmp_path, BASE, {"steps": 1, "graph": True, "new": 1})

    assert "got unasked: new None -> 1, page 16 -> None" == result.text


def test_config_refuses_a_candidate_that_resolves_differently_the_second_time(tmp_path: Path) -> None:
    """Also where both are what it asked for."""
    result = configured(tmp_path, BASE, {**BASE, "steps": 4}, b2={**BASE, "steps": 5}, asked={"steps": 4})

    assert ("refused", "unasked_config") == verdict(result)
    assert "resolved differently in B2: steps 4 -> 5" == result.text


def test_config_knows_what_the_engine_changes_by_itself(tmp_path: Path) -> None:
    """A setting that follows from one that was asked for was asked for."""
    changed = {**BASE, "steps": 4, "page": 64}

    result = configured(tmp_path, BASE, changed, asked={"steps": 4}, derived={"steps": frozenset({"page"})})

    assert "2 settings changed, as asked for" == result.text


def test_config_refuses_a_bundle_whose_only_settings_were_ignored(tmp_path: Path) -> None:
    """Whatever was measured is noise."""
    result = configured(tmp_path, BASE, BASE, asked={"steps": 4})

    assert ("refused", "no_effect") == verdict(result)
    assert "asked and ignored: steps stayed 1" == result.text


def test_config_passes_a_bundle_of_which_something_took_effect(tmp_path: Path) -> None:
    """One of two settings did."""
    assert "passed" == configured(tmp_path, BASE, {**BASE, "page": 64}, asked={"steps": 4, "page": 64}).outcome


def test_config_does_not_count_a_setting_that_both_arms_ask_for_as_a_change(tmp_path: Path) -> None:
    """Also where one arm's list came from a file and the other's did not: JSON has lists, records have tuples."""
    info = {**BASE, "sizes": [1, 2]}
    sessions = [session(tmp_path, label, info=info) for label in ("A1", "B", "A2")]
    baseline = effective("base", args={"sizes": (1, 2)}, asked={"sizes": [1, 2]})
    candidate = effective("idea", args={"sizes": (1, 2)}, asked={"sizes": (1, 2)})

    result = Config().check(bracket(tmp_path, sessions, baseline=baseline, candidate=candidate))

    assert ("passed", "config") == verdict(result)


def test_config_cannot_judge_beside_a_baseline_that_changed(tmp_path: Path) -> None:
    """Between its own sessions."""
    result = configured(tmp_path, BASE, BASE, {**BASE, "page": 64})

    assert ("uninformative", "env_changed") == verdict(result)
    assert "the baseline resolved differently in A2: page 16 -> 64" == result.text


@pytest.mark.parametrize(("a1", "b"), [(None, BASE), (BASE, None)])
def test_config_cannot_tell_without_both_configurations(
    tmp_path: Path, a1: dict[str, Any] | None, b: dict[str, Any] | None
) -> None:
    """A server that died early reported none."""
    result = configured(tmp_path, a1, b)

    assert ("uninformative", "no_server_info") == verdict(result)


# regression


def weighed(root: Path, *compared: Any, **settings: Any) -> GateResult:
    """What `regression` says of these comparisons."""
    return Regression(**settings).check(bracket(root, [], compared=compared))


def test_regression_passes_and_names_the_weakest(tmp_path: Path) -> None:
    """The whole does not count: it may hide a loser."""
    result = weighed(
        tmp_path, comparison("one", effect_pct=3.0), comparison("four", effect_pct=-0.5), comparison(effect_pct=-9.0)
    )

    assert ("passed", "regression") == verdict(result)
    assert "the weakest is four at -0.5 %" == result.text


def test_regression_refuses_what_is_certainly_slower(tmp_path: Path) -> None:
    """With its interval."""
    result = weighed(tmp_path, comparison("one", effect_pct=30.0), comparison("four", effect_pct=-3.0, half_pct=0.5))

    assert ("refused", "regression") == verdict(result)
    assert "four is 3.0 % slower (-3.5 to -2.5 %)" == result.text
    assert {"effect_pct": -3.0, "tau_pct": 2.0} == result.values


@pytest.mark.parametrize(
    ("effect_pct", "half_pct", "mde_pct", "outcome"),
    [
        (-1.9, 0.1, 1.0, "passed"),
        (-2.0, 0.1, 1.0, "refused"),
        (-5.9, 8.0, 1.0, "passed"),
        (-6.0, 8.0, 1.0, "refused"),
        (-6.0, 8.0, 4.0, "passed"),
        (-12.0, 20.0, 4.0, "refused"),
        (0.0, 0.1, 1.0, "passed"),
    ],
)
def test_regression_needs_certainty_or_size(
    tmp_path: Path, effect_pct: float, half_pct: float, mde_pct: float, outcome: str
) -> None:
    """2 % for certain, or three times what the round can tell from noise."""
    item = comparison("one", effect_pct=effect_pct, half_pct=half_pct, mde_pct=mde_pct)

    assert outcome == weighed(tmp_path, item).outcome


def test_regression_takes_its_tolerance_from_the_suite(tmp_path: Path) -> None:
    """Both settings."""
    item = comparison("one", effect_pct=-3.0, half_pct=0.5)

    assert "passed" == weighed(tmp_path, item, tolerance_pct=5.0).outcome
    assert "refused" == weighed(tmp_path, comparison("one", effect_pct=-2.0, half_pct=9.0), collapse_factor=1.0).outcome


def test_regression_without_comparisons_cannot_tell(tmp_path: Path) -> None:
    """Nothing was timed."""
    assert ("uninformative", "not_timed") == verdict(weighed(tmp_path))


def test_regression_of_the_whole_suite_alike_is_refused_by_its_first_scope(tmp_path: Path) -> None:
    """It is the judge who says that slower as a whole is a measurement."""
    result = Regression().check(bracket(tmp_path, [], compared=comparisons(-10.0)))

    assert "one is 10.0 % slower (-11.0 to -9.0 %)" == result.text
