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

    def session(self, label: str, bundle: str, index: int, total: int) -> None:
        """`A1 original 1/3`."""
        self._label = label
        self.lines.append(f"{label} {bundle} {index}/{total}")

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


def whole(label: str, bundle: str, index: int, total: int = 3) -> list[str]:
    """The lines of a complete session."""
    return [f"{label} {bundle} {index}/{total}", *(f"{label}: {phase}" for phase in SESSION)]


def test_a_round_is_a_then_b_then_a_each_in_a_server_of_its_own(run: Run) -> None:
    """Launch, warm up, check, time, stop; three times; the baseline on both sides."""
    diary = Diary()

    run("noop", watcher=diary)

    assert whole("A1", "original", 1) + whole("B", "noop", 2) + whole("A2", "original", 3) == diary.lines


def test_ababa_brackets_every_b(run: Run) -> None:
    """Five sessions, starting and ending with the baseline."""
    diary = Diary()

    run("noop", watcher=diary, protocol="ababa")

    starts = [line for line in diary.lines if line.endswith("/5")]
    assert ["A1 original 1/5", "B1 noop 2/5", "A2 original 3/5", "B2 noop 4/5", "A3 original 5/5"] == starts


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

    assert ["B broken 2/3", "B: starting the server", "B: stopping the server"] == diary.lines[-3:]
