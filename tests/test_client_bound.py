"""The gates that ask whether a speed was the server's, and whether both servers were given the same work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loop.client_report import ClientReport, Punctuality
from loop.gates import GateResult
from loop.gates.client_bound import ClientBound
from loop.gates.same_prompts import SamePrompts
from loop.judge import judge
from loop.session import Session
from tests.brackets import SEQUENTIAL, bracket, comparisons, replies, same_session, session

LABELS = ("A1", "B", "A2")


def report(**fields: Any) -> ClientReport:
    """An idle, punctual client of a server that takes 100 ms; `fields` replace what they name."""
    usual = {
        "started_at_ns": 0,
        "wall_s": 10.0,
        "cpu_s": 1.0,
        "loop_lag_p99_ms": 0.2,
        "num_connections": 4,
        "e2e_p50_ms": 100.0,
        "outside_server_p50_ms": 0.3,
        "outside_server_p50_share": 0.003,
    }
    return ClientReport.model_validate({**usual, **fields})


def kept(*, achieved: float = 10.0, p50_ms: float = 0.1, p99_ms: float | None = 0.2) -> Punctuality:
    """How a schedule of 10 requests per second was kept."""
    return Punctuality(
        requested_rate_per_s=10.0,
        achieved_rate_per_s=achieved,
        delay_p50_ms=p50_ms,
        delay_p99_ms=p99_ms,
        delay_max_ms=max(p50_ms, p99_ms or 0),
    )


def measured(root: Path, label: str, *reports: ClientReport) -> Session:
    """A session whose passes of one workload have these reports."""
    made = session(
        root, label, check=replies("check"), timed={SEQUENTIAL: [replies(f"one-{i}") for i in range(len(reports))]}
    )
    check, *timed = made.measurements
    timed = [m.model_copy(update={"client": r}) for m, r in zip(timed, reports, strict=True)]
    return made.model_copy(update={"measurements": (check, *timed)})


def asked(root: Path, *of_b: ClientReport, **settings: Any) -> GateResult:
    """What the gate says if B's client reported this, and everybody else's nothing special."""
    sessions = [measured(root, label, *(of_b if label == "B" else [report()])) for label in LABELS]
    return ClientBound(**settings).check(bracket(root, sessions))


def verdict(result: GateResult) -> tuple[str, str]:
    """Outcome and reason."""
    return result.outcome, result.reason


def test_an_idle_client_measures_a_server(tmp_path: Path) -> None:
    """With how busy it was."""
    result = asked(tmp_path, report(), report(cpu_s=2.0))

    assert ("passed", "client_bound") == verdict(result)
    assert "the client used 0.15 of a core at most" == result.text
    assert {"cpu_share": 0.15} == result.values


def test_a_client_that_used_most_of_a_core_measured_itself(tmp_path: Path) -> None:
    """The round is invalid, not the candidate bad; and there is something to do about it."""
    result = asked(tmp_path, report(cpu_s=7.1))

    assert ("uninformative", "client_bound") == verdict(result)
    expected = (
        "one in B: the client used 0.71 of a core (at most 0.70): its own speed was measured; send fewer streams or a "
        "lower rate, or give it a faster core"
    )
    assert expected == result.text
    assert "passed" == asked(tmp_path, report(cpu_s=7.0)).outcome
    assert "passed" == asked(tmp_path, report(cpu_s=7.1), max_cpu_share=0.8).outcome


@pytest.mark.parametrize(
    ("outside_ms", "share", "outcome"),
    [(1.1, 0.051, "uninformative"), (1.1, 0.05, "passed"), (1.0, 0.5, "passed"), (30.0, 0.04, "passed")],
)
def test_time_that_the_server_knows_nothing_of_must_be_little(
    tmp_path: Path, outside_ms: float, share: float, outcome: str
) -> None:
    """More than a millisecond and more than 5 % of a request: either alone says nothing."""
    result = asked(tmp_path, report(outside_server_p50_ms=outside_ms, outside_server_p50_share=share))

    assert outcome == result.outcome
    if outcome != "passed":
        assert "1.1 ms or 5 % of a request passed outside the server (at most 1 ms or 5 %)" in result.text


@pytest.mark.parametrize(
    ("lag_ms", "e2e_ms", "outcome"),
    [(6.0, 100.0, "uninformative"), (2.1, 40.0, "uninformative"), (2.0, 10.0, "passed"), (6.0, 200.0, "passed")],
)
def test_a_late_event_loop_is_held_against_the_latency(
    tmp_path: Path, lag_ms: float, e2e_ms: float, outcome: str
) -> None:
    """More than 2 ms and more than 5 % of the median request."""
    result = asked(tmp_path, report(loop_lag_p99_ms=lag_ms, e2e_p50_ms=e2e_ms))

    assert outcome == result.outcome
    if outcome != "passed":
        assert f"its event loop ran {lag_ms} ms late" in result.text
        assert "leave the client a core" in result.text


def test_an_open_loop_must_keep_its_rate(tmp_path: Path) -> None:
    """Below 0.98 of it, a lighter load than the suite's was measured."""
    result = asked(tmp_path, report(punctuality=kept(achieved=9.7)))

    assert ("uninformative", "rate_not_reached") == verdict(result)
    assert "one in B: 97.0 % of the requested rate was sent (at least 98 %)" in result.text
    assert "passed" == asked(tmp_path, report(punctuality=kept(achieved=9.8))).outcome
    assert "passed" == asked(tmp_path, report(punctuality=kept(achieved=9.7)), min_rate_share=0.9).outcome


@pytest.mark.parametrize(
    ("schedule", "outcome"),
    [
        (kept(p99_ms=6.0), "uninformative"),
        (kept(p99_ms=4.0), "passed"),
        (kept(p50_ms=6.0, p99_ms=None), "uninformative"),
        (kept(p50_ms=4.0, p99_ms=None), "passed"),
    ],
)
def test_requests_of_an_open_loop_must_leave_in_time(tmp_path: Path, schedule: Punctuality, outcome: str) -> None:
    """Late requests are the client's queue; of fewer than a hundred, the median has to do."""
    result = asked(tmp_path, report(punctuality=schedule))

    assert outcome == result.outcome
    assert ("requests left 6.0 ms late, 6 % of a request" in result.text) == (outcome != "passed")


def test_one_disturbed_pass_of_three_is_not_the_sessions(tmp_path: Path) -> None:
    """The median of the passes is what is compared, too."""
    calm, late = report(), report(loop_lag_p99_ms=50.0, outside_server_p50_ms=50.0, outside_server_p50_share=0.5)

    assert "passed" == asked(tmp_path, calm, late, calm).outcome
    assert "uninformative" == asked(tmp_path, late, late, calm).outcome


def test_what_is_not_known_is_not_held_against_anybody(tmp_path: Path) -> None:
    """Servers that do not time themselves, short steps, and rounds from before there were such reports."""
    old = ClientReport(started_at_ns=0, wall_s=1.0, cpu_s=0.1, loop_lag_p99_ms=9.0, num_connections=1)
    alone = Punctuality(
        requested_rate_per_s=None,
        achieved_rate_per_s=None,
        delay_p50_ms=None,
        delay_p99_ms=None,
        delay_max_ms=None,
    )

    assert "passed" == asked(tmp_path, old).outcome
    assert "passed" == asked(tmp_path, report(punctuality=alone)).outcome


@pytest.mark.parametrize("label", LABELS)
def test_any_session_makes_the_round_invalid(tmp_path: Path, label: str) -> None:
    """Through the judge, with the gate's words."""
    sessions = [measured(tmp_path, name, report(cpu_s=9.0 if name == label else 1.0)) for name in LABELS]

    judged = judge(bracket(tmp_path, sessions, compared=comparisons(5.0)))

    assert ("invalid", "client_bound") == (judged.verdict.outcome, judged.verdict.reason)
    assert judged.verdict.text.startswith(f"client_bound: one in {label}: the client used 0.90 of a core")


def test_a_candidate_that_was_not_timed_is_not_excused_by_a_busy_client(tmp_path: Path) -> None:
    """Its wrong answers are wrong however fast they came."""
    sessions = [measured(tmp_path, "A1", report(cpu_s=9.0)), session(tmp_path, "B", check=replies("check"))]

    assert "passed" == ClientBound().check(bracket(tmp_path, sessions)).outcome


# the same prompts


def with_prompts(root: Path, label: str, counts: Sequence[int], **fields: Any) -> Session:
    """A session whose three timed requests had so many prompt tokens each, by the server's count."""
    received = [
        reply.model_copy(update={"num_prompt_tokens": count, **fields})
        for reply, count in zip(replies("one-0"), counts, strict=True)
    ]
    return session(root, label, check=replies("check"), timed={SEQUENTIAL: [received]})


def test_the_same_prompts_everywhere_pass(tmp_path: Path) -> None:
    """Of every step that succeeded."""
    sessions = [same_session(tmp_path, label) for label in LABELS]

    result = SamePrompts().check(bracket(tmp_path, sessions))

    assert ("passed", "same_prompts") == verdict(result)
    assert "3 steps with the same prompts in every session" == result.text


def test_a_candidate_with_shorter_prompts_is_refused(tmp_path: Path) -> None:
    """Another chat template, or a truncation: less work is not more speed."""
    counts = {"A1": (40, 41, 42), "B": (40, 30, 42), "A2": (40, 41, 42)}

    result = SamePrompts().check(bracket(tmp_path, [with_prompts(tmp_path, name, c) for name, c in counts.items()]))

    assert ("refused", "prompts_differ") == verdict(result)
    assert "one-0 of B had 112 prompt tokens; 123 in A" == result.text


def test_a_baseline_with_two_lengths_of_prompts_judges_nobody(tmp_path: Path) -> None:
    """Something else than the candidate has changed."""
    counts = {"A1": (40, 41, 42), "B": (40, 30, 42), "A2": (40, 30, 42)}

    result = SamePrompts().check(bracket(tmp_path, [with_prompts(tmp_path, name, c) for name, c in counts.items()]))

    assert ("uninformative", "env_changed") == verdict(result)


def test_failures_are_left_to_the_gate_that_counts_them(tmp_path: Path) -> None:
    """A request without an answer has no count."""
    sessions = [
        with_prompts(tmp_path, "A1", (40, 41, 42)),
        with_prompts(tmp_path, "B", (40, 1, 42), failure="reset", error="gone"),
    ]

    assert "passed" == SamePrompts().check(bracket(tmp_path, sessions)).outcome


def test_nothing_is_found_before_there_is_a_session(tmp_path: Path) -> None:
    """Both gates are asked early."""
    for gate in (ClientBound(), SamePrompts()):
        assert not gate.needs_timing
        assert "passed" == gate.check(bracket(tmp_path, [])).outcome
