"""The order of a round is a contract: what is started, sent and stopped, in which sequence."""

from collections.abc import Callable

from loop.ledger import Round
from loop.watch import Watcher

Run = Callable[..., Round]
Write = Callable[..., str]


class Diary(Watcher):
    """Writes down everything a round says it does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._label = ""

    def session(self, label: str, bundle: str) -> None:
        """`A1 original`."""
        self._label = label
        self.lines.append(f"{label} {bundle}")

    @property
    def starts(self) -> list[str]:
        """The sessions that began, each with its bundle."""
        return [line for line in self.lines if ":" not in line]

    def phase(self, name: str, num_requests: int = 0) -> None:
        """`A1: check`."""
        self.lines.append(f"{self._label}: {name}")


SESSION = [
    "starting the server",
    "warm-up 1",
    "warm-up 2",
    "warm-up 3",
    "check",
    "one-0",
    "four-0",
    "stopping the server",
]


def whole(label: str, bundle: str) -> list[str]:
    """The lines of a complete session."""
    return [f"{label} {bundle}", *(f"{label}: {phase}" for phase in SESSION)]


def test_a_round_is_a_then_b_then_a_each_in_a_server_of_its_own(run: Run) -> None:
    """Launch, warm up, check, time, stop; three times; the baseline on both sides."""
    diary = Diary()

    run("noop", watcher=diary)

    assert whole("A1", "original") + whole("B", "noop") + whole("A2", "original") == diary.lines


def test_a_round_that_cannot_tell_goes_on_by_itself(run: Run, write_bundle: Write) -> None:
    """20 % under noise of 10 % a session: one more B and A, beside the three that are there."""
    write_bundle("slow", args={"tpot_ms": 10.0, "ttft_ms": 20.0})
    write_bundle("better", parent="slow", args={"tpot_ms": 8.0, "ttft_ms": 16.0})
    diary = Diary()

    round_ = run("better", watcher=diary, baseline="slow", extend=True)

    assert ["A1 slow", "B better", "A2 slow", "B2 better", "A3 slow"] == diary.starts
    assert {5} == {len(comparison.sessions) for comparison in round_.comparisons}


def test_a_hopeless_candidate_costs_no_second_baseline(run: Run, write_bundle: Write) -> None:
    """Slower as a whole is a measurement, not a refusal; a win is measured to the end."""
    write_bundle("slower", args={"tpot_ms": 12.0, "ttft_ms": 30.0})
    diary = Diary()

    round_ = run("slower", watcher=diary)

    assert ["A1 original", "B slower"] == diary.starts
    assert round_.verdict is not None
    assert ("regressed", "futile", ()) == (round_.verdict.outcome, round_.verdict.reason, round_.verdict.refused_by)


def test_a_refused_candidate_is_not_timed_and_the_last_a_only_checks(run: Run, write_bundle: Write) -> None:
    """What is left of interest is whether the baseline repeats itself."""
    write_bundle("wrong", args={"answer_seed": 3})
    diary = Diary()

    run("wrong", watcher=diary)

    b = [line.removeprefix("B: ") for line in diary.lines if line.startswith("B: ")]
    a2 = [line.removeprefix("A2: ") for line in diary.lines if line.startswith("A2: ")]
    untimed = [phase for phase in SESSION if phase not in ("one-0", "four-0")]
    assert untimed == b
    assert untimed == a2


def test_after_a_crash_of_b_nothing_more_is_started(run: Run, write_bundle: Write) -> None:
    """The crash is the verdict."""
    write_bundle("broken", args={"fault": ["die_at_start"]})
    diary = Diary()

    run("broken", watcher=diary)

    assert ["B broken", "B: starting the server", "B: stopping the server"] == diary.lines[-3:]
