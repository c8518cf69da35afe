"""The judge: which rule speaks first, and that nothing refused is ever an improvement."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop import gates, plugins
from loop.compare import Comparison
from loop.effective import Effective
from loop.errors import SuiteError
from loop.gates import Bracket, GateResult
from loop.judge import LETTERS, Judgement, check_correctness, decide, judge, load_gates
from loop.session import Crash, Session
from tests.brackets import bracket, comparison, comparisons, effective, replies, same_session, session, suite

CRASH = Crash(stage="traffic", message="ended with exit code -9", log_tail="")
GATES = plugins.available(gates)
RESULTS = st.lists(
    st.builds(
        GateResult,
        gate=st.sampled_from(GATES),
        outcome=st.sampled_from(["passed", "refused", "uninformative"]),
        reason=st.sampled_from(["prefix_match", "no_effect", "not_timed", "unstable", "regression"]),
        text=st.just("why"),
    ),
    max_size=5,
)


def result(gate: str, outcome: str = "refused", reason: str = "") -> GateResult:
    """What a gate found."""
    return GateResult.model_validate({"gate": gate, "outcome": outcome, "reason": reason or gate, "text": "why"})


def measured(
    effect_pct: float = 0.0,
    *,
    sessions: Sequence[Session] = (),
    compared: Sequence[Comparison] | None = None,
    candidate: Effective | None = None,
    **fields: Any,
) -> Bracket:
    """A bracket whose scopes all have this effect; decides need no replies."""
    chosen = comparisons(effect_pct, **fields) if compared is None else compared
    return bracket(Path(), sessions, compared=chosen, candidate=candidate)


def decided(of: Bracket, *results: GateResult) -> tuple[str, str, tuple[str, ...]]:
    """Outcome, reason, and who refused."""
    verdict = decide(of, results)
    return verdict.outcome, verdict.reason, verdict.refused_by


# the order of rules


def test_a_hopeless_candidate_is_regressed_after_one_baseline() -> None:
    """Futile only with a single A, and never for the baseline itself."""
    hopeless = {"effect_pct": -20.0, "sigma_pct": 1.0}
    one_a = measured(sessions=(session(Path(), "A1"), session(Path(), "B")), **hopeless)
    two_as = measured(sessions=(session(Path(), "A1"), session(Path(), "B"), session(Path(), "A2")), **hopeless)

    assert ("regressed", "futile", ()) == decided(one_a)
    assert ("regressed", "measured", ()) == decided(two_as)
    assert "identical" == decided(one_a.model_copy(update={"candidate": one_a.baseline}))[1]


def test_a_calibration_is_judged_by_its_numbers() -> None:
    """A against A may come out as anything: how often it does is what it is for."""
    same = measured(effect_pct=5.0, candidate=effective())
    calibration = same.model_copy(update={"purpose": "calibration"})

    assert ("no_change", "identical", ()) == decided(same)
    assert ("improved", "measured", ()) == decided(calibration)


def test_numbers_decide_when_nothing_else_does() -> None:
    """The words carry them."""
    verdict = decide(measured(5.0), [result("success", "passed")])

    assert ("improved", "measured", ()) == (verdict.outcome, verdict.reason, verdict.refused_by)
    expected = "B is 5.0 % faster (95 % interval +4.0 to +6.0 %); A drifted 0.0 %, noise of a session 0.5 %"
    assert expected == verdict.text


@pytest.mark.parametrize(
    ("effect_pct", "half_pct", "outcome"),
    [(5.0, 1.0, "improved"), (-5.0, 1.0, "regressed"), (0.0, 0.5, "no_change"), (3.0, 9.0, "inconclusive")],
)
def test_the_whole_decides(effect_pct: float, half_pct: float, outcome: str) -> None:
    """Scopes apart."""
    compared = [*comparisons(0.0)[:-1], comparison(effect_pct=effect_pct, half_pct=half_pct)]

    assert (outcome, "measured", ()) == decided(measured(compared=compared))


def test_a_baseline_that_crashed_comes_before_everything() -> None:
    """Nothing can be said about the candidate, not even that it crashed too."""
    sessions = [session(Path(), "A1", crash=CRASH), session(Path(), "B", crash=CRASH)]

    verdict = decide(measured(5.0, sessions=sessions), [result("prefix_match")])

    assert ("invalid", "baseline_crashed") == (verdict.outcome, verdict.reason)
    assert "the baseline's A1: ended with exit code -9" == verdict.text


@pytest.mark.parametrize(
    ("stage", "reason"), [("start", "server_start_failed"), ("traffic", "crash_under_load"), ("flush", "flush_refused")]
)
def test_a_candidate_that_crashed_comes_before_its_gates(stage: str, reason: str) -> None:
    """A crash is a result."""
    crash = CRASH.model_copy(update={"stage": stage})
    of = measured(5.0, sessions=[session(Path(), "A1"), session(Path(), "B", crash=crash)])

    assert ("regressed", reason, ()) == decided(of, result("config", "uninformative", "no_server_info"))


def test_an_unfit_baseline_comes_before_a_refusal() -> None:
    """A bar that the baseline misses itself refuses nobody."""
    results = [result("success"), result("prefix_match", "uninformative", "unstable")]

    assert ("invalid", "unstable", ()) == decided(measured(5.0), *results)


def test_what_only_timing_could_say_does_not_excuse_a_refused_check() -> None:
    """A candidate that failed its check was not timed."""
    results = [result("prefix_match"), result("timed_path", "uninformative", "not_timed")]

    assert ("regressed", "prefix_match", ("prefix_match",)) == decided(measured(compared=()), *results)


def test_a_refusal_comes_before_drift_and_numbers() -> None:
    """Final for the content hash, whatever the clock said."""
    results = [result("success", "passed"), result("timed_path"), result("prefix_match")]

    assert ("regressed", "timed_path", ("timed_path", "prefix_match")) == decided(
        measured(50.0, drift_pct=9.0), *results
    )


def test_a_setting_without_effect_is_no_regression() -> None:
    """It is no change, and refused."""
    assert ("no_change", "no_effect", ("config",)) == decided(measured(5.0), result("config", reason="no_effect"))


def test_nothing_compared_is_invalid() -> None:
    """Passed gates alone prove no speed."""
    assert ("invalid", "not_timed", ()) == decided(measured(compared=()), result("success", "passed"))


def test_drift_comes_before_numbers() -> None:
    """An effect inside a moving bracket proves nothing; also where the candidate is the baseline."""
    verdict = decide(measured(50.0, drift_pct=9.0), [])

    assert ("invalid", "drift") == (verdict.outcome, verdict.reason)
    assert "the baseline moved by 9.0 % between its sessions; noise explains 2.0 %" == verdict.text
    assert ("invalid", "drift", ()) == decided(measured(50.0, drift_pct=9.0, candidate=effective()))


def test_the_baseline_itself_is_never_improved() -> None:
    """Whatever the numbers say, and whatever they look like to the regression gate."""
    for effect_pct in (50.0, -50.0):
        of = measured(effect_pct, candidate=effective("copy"))

        assert ("no_change", "identical", ()) == decided(of, result("regression"))


def test_slower_as_a_whole_is_a_measurement() -> None:
    """Nobody refused it: a later round may say otherwise."""
    assert ("regressed", "regression", ()) == decided(measured(-20.0), result("regression"))


def test_faster_as_a_whole_at_somebodys_expense_is_a_refusal() -> None:
    """The regression gate's."""
    assert ("regressed", "regression", ("regression",)) == decided(measured(20.0), result("regression"))


def test_every_outcome_has_a_letter() -> None:
    """For tables."""
    assert {"improved", "regressed", "no_change", "inconclusive", "invalid"} == set(LETTERS)


# properties


@given(RESULTS, st.sampled_from(GATES), st.floats(-50, 50), st.integers(0, 5), st.booleans())
def test_one_refusal_is_enough_never_to_be_improved(
    results: list[GateResult],
    gate: str,
    effect_pct: float,
    place: int,
    drifts: bool,  # noqa: FBT001
) -> None:
    """Of any gate, at any place, beside any others, with any effect."""
    of = measured(effect_pct, drift_pct=9.0 if drifts else 0.0)

    verdict = decide(of, [*results[:place], result(gate), *results[place:]])

    assert "improved" != verdict.outcome


@given(RESULTS, st.floats(-50, 50))
def test_there_is_always_a_verdict(results: list[GateResult], effect_pct: float) -> None:
    """And it is improved only with every gate passed."""
    verdict = decide(measured(effect_pct), results)

    assert verdict.outcome in LETTERS
    assert (verdict.outcome == "improved") <= ({item.outcome for item in results} <= {"passed"})


# the whole judgement


def sessions(root: Path, **checks: Sequence[str]) -> list[Session]:
    """Sessions in which everything was right but, in one, the check's answers."""
    found = []
    for label in ("A1", "B", "A2"):
        whole = same_session(root, label, info={"inert_number": 3 if label == "B" else 0})
        if label in checks:
            wrong = session(root, label, check=replies("check", checks[label])).measurements
            whole = whole.model_copy(update={"measurements": (*wrong, *whole.measurements[1:])})
        found.append(whole)
    return found


def test_a_clean_round_has_every_gate_a_score_and_a_verdict(tmp_path: Path) -> None:
    """All gates in the order of their names."""
    found = judge(bracket(tmp_path, sessions(tmp_path), compared=comparisons(50.0)))

    assert GATES == tuple(item.gate for item in found.gates)
    assert {"passed"} == {item.outcome for item in found.gates}
    assert ("improved", "measured") == (found.verdict.outcome, found.verdict.reason)
    assert found.score is not None
    assert found.score.score > 0.4


def scoreless(found: Judgement) -> bool:
    """Whether it scores exactly zero."""
    return found.score is not None and found.score.score == 0.0


def test_a_refused_round_scores_zero(tmp_path: Path) -> None:
    """The speed of wrong answers is worth nothing."""
    found = judge(bracket(tmp_path, sessions(tmp_path, B=["wrong"] * 3), compared=comparisons(50.0)))

    assert ("regressed", ("prefix_match",)) == (found.verdict.outcome, found.verdict.refused_by)
    assert scoreless(found)


def test_an_identical_round_scores_zero(tmp_path: Path) -> None:
    """Relaunching the baseline earns nothing."""
    same = [same_session(tmp_path, label) for label in ("A1", "B", "A2")]

    found = judge(bracket(tmp_path, same, compared=comparisons(50.0), candidate=effective("copy")))

    assert "identical" == found.verdict.reason
    assert scoreless(found)


def test_an_invalid_round_scores_zero(tmp_path: Path) -> None:
    """Nothing was proven."""
    found = judge(bracket(tmp_path, sessions(tmp_path), compared=comparisons(50.0, drift_pct=9.0)))

    assert "drift" == found.verdict.reason
    assert scoreless(found)


def test_a_crashed_round_asks_no_gate(tmp_path: Path) -> None:
    """There is nothing whole to look at."""
    crashed = [same_session(tmp_path, "A1"), session(tmp_path, "B", crash=CRASH)]

    found = judge(bracket(tmp_path, crashed))

    assert ((), None) == (found.gates, found.score)


def test_the_check_is_judged_before_anything_is_timed(tmp_path: Path) -> None:
    """By the gates that need no timing, and by no other."""
    wrong = session(tmp_path, "B", check=replies("check", ["wrong"] * 3), info={"inert_number": 3})

    found = check_correctness(bracket(tmp_path, [same_session(tmp_path, "A1"), wrong]))

    early = {
        "client_bound": "passed",
        "config": "passed",
        "engaged": "passed",
        "prefix_match": "refused",
        "same_prompts": "passed",
    }
    assert early == {item.gate: item.outcome for item in found}


def test_a_suite_sets_its_gates(tmp_path: Path) -> None:
    """By name."""
    loose = suite(gates={"prefix_match": {"min_mean": 0.0, "exact_slack": 1.0}})

    found = judge(bracket(tmp_path, sessions(tmp_path, B=["wrong"] * 3), compared=comparisons(50.0), of=loose))

    assert "improved" == found.verdict.outcome


def test_a_gate_that_is_none_is_refused_with_the_closest() -> None:
    """Before anything starts."""
    with pytest.raises(SuiteError) as caught:
        load_gates({"prefix_mach": {}})

    expected = f"[gates.prefix_mach] is no gate; known: {', '.join(GATES)}; did you mean 'prefix_match'?"
    assert expected == str(caught.value)


def test_a_setting_that_is_none_is_refused_with_the_closest() -> None:
    """As any field of any file."""
    with pytest.raises(SuiteError) as caught:
        load_gates({"prefix_match": {"min_meen": 0.9}})

    assert "[gates.prefix_match] is not a valid prefixmatch:" in str(caught.value)
    assert "min_meen: no such field; known: exact_slack, min_mean; did you mean 'min_mean'?" in str(caught.value)


def test_a_setting_of_another_type_is_refused() -> None:
    """With the field."""
    with pytest.raises(SuiteError, match="min_mean: Input should be a valid number"):
        load_gates({"prefix_match": {"min_mean": "high"}})
