"""The ledger: written once, chained, locked, and readable whatever happened to the writer."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loop.durable import write_atomically
from loop.errors import HardStop, InputError, UnfitError
from loop.host import machine_name
from loop.ledger import Ledger, now_utc
from loop.recording import close_killed, commitment
from tests.brackets import closed_round, comparisons, same_session, stored_round

HOLD = """
import sys
from pathlib import Path
from loop.ledger import Ledger
with Ledger(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""
FILL = """
import resource, signal, sys
from pathlib import Path
from loop.durable import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
write_atomically(Path(sys.argv[1]), b"x" * 100_000)
"""
ALTERNATE = """
import sys
from pathlib import Path
from loop.durable import write_atomically
while True:
    for digit in b"01":
        write_atomically(Path(sys.argv[1]), bytes([digit]) * 300_000)
    print(flush=True)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def three(ledger: Ledger) -> Ledger:
    """A ledger with three closed rounds."""
    for number in (1, 2, 3):
        ledger.write(closed_round(f"R00000{number}-000{number}"))
    return ledger


def chain_of(ledger: Ledger) -> Path:
    """This machine's chain."""
    return ledger.root / "chain" / f"{machine_name()}.jsonl"


def broken(ledger: Ledger) -> str:
    """What `verify` says about a broken chain."""
    with pytest.raises(HardStop) as caught:
        ledger.verify()
    return str(caught.value)


# rounds


def test_a_round_reads_back_as_it_was_written(ledger: Ledger, tmp_path: Path) -> None:
    """With sessions and numbers."""
    sessions = tuple(same_session(tmp_path, label) for label in ("A1", "B", "A2"))
    round_ = closed_round(sessions=sessions, comparisons=comparisons(1 / 3), wall_s=0.1)

    ledger.write(round_)

    assert round_ == ledger.read(round_.id)
    assert [round_] == ledger.read_all()


def test_a_running_round_grows_and_a_closed_one_never_changes(ledger: Ledger) -> None:
    """Not by a byte."""
    ledger.write(stored_round())
    ledger.write(stored_round(wall_s=1.0))
    path = ledger.write(closed_round())
    before = path.read_bytes()

    for again in (closed_round(), closed_round(wall_s=2.0), stored_round()):
        with pytest.raises(HardStop, match="is closed: a closed round is never"):
            ledger.write(again)

    assert before == path.read_bytes()
    assert 1 == ledger.verify()


def test_missing_is_null_and_never_zero(ledger: Ledger) -> None:
    """In the file."""
    document = json.loads(ledger.write(stored_round()).read_text())

    assert [None] * 4 == [document[name] for name in ("wall_s", "score", "verdict", "closed_utc")]
    assert "loop.round/1" == document["schema"]


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "closed"},
        {"verdict": closed_round().verdict},
        {"secret_hex": "00"},
        {"closed_utc": now_utc()},
        {"status": "closed", "verdict": closed_round().verdict, "failure": {"kind": "killed", "message": "x"}},
    ],
)
def test_impossible_states_cannot_be_made(fields: dict[str, Any]) -> None:
    """A running round has no verdict and keeps its secret; a closed one has a verdict or a failure."""
    with pytest.raises(ValueError, match=r"a closed round has|a running round has"):
        stored_round(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        (
            '{"schema": "loop.round/2"}',
            "has schema 'loop.round/2'; this loop reads 'loop.round/1'\n  next: update loop",
        ),
        ("[]", "has schema None"),
        ('{"schema": "loop.round/1", "id": 3}', "is not a valid round"),
    ],
)
def test_a_round_that_cannot_be_read_is_named(ledger: Ledger, text: str, message: str) -> None:
    """A newer schema by its name; never a traceback."""
    path = ledger.write(stored_round())
    path.write_text(text)

    with pytest.raises(InputError) as caught:
        ledger.read("R000001-abcd")
    assert f"{path} {message}" in str(caught.value)


# finding


def test_new_ids_count_up_and_differ(three: Ledger) -> None:
    """A number for people and a suffix for merging."""
    made = {three.new_id() for _ in range(20)}

    assert {"R000004"} == {round_id[:7] for round_id in made}
    assert len(made) > 10


@pytest.mark.parametrize("prefix", ["R000002-0002", "R000002-", "R000002", "2", "R2", "000002", "02"])
def test_a_round_is_found_by_what_people_type(three: Ledger, prefix: str) -> None:
    """The whole id, any unique prefix, or the number."""
    assert "R000002-0002" == three.find(prefix)


def test_a_number_is_not_a_prefix_of_other_numbers(ledger: Ledger) -> None:
    """Round 1 is not round 12."""
    for number in (1, 12):
        ledger.write(closed_round(f"R{number:06d}-abcd"))

    assert "R000001-abcd" == ledger.find("1")


def test_an_ambiguous_prefix_lists_what_it_names(three: Ledger) -> None:
    """Two machines may both have a round 2."""
    three.write(closed_round("R000002-ffff"))

    with pytest.raises(InputError, match="'2' names 2 rounds: R000002-0002, R000002-ffff"):
        three.find("2")
    assert "R000002-ffff" == three.find("R000002-f")


@pytest.mark.parametrize("prefix", ["9", "R9", "X", "R000002-9", ""])
def test_an_unknown_round_names_the_last_one(three: Ledger, prefix: str) -> None:
    """And the command that lists them."""
    if prefix:
        with pytest.raises(InputError) as caught:
            three.find(prefix)
        assert f"no round {prefix!r} in {three.rounds}; the last is R000003-0003" in str(caught.value)
    else:
        with pytest.raises(InputError):
            three.find(prefix)


def test_an_empty_ledger_says_that_it_is_empty(ledger: Ledger) -> None:
    """Before the first round."""
    with pytest.raises(InputError, match="there is none yet"):
        ledger.find("1")
    assert ([], [], 0) == (ledger.ids(), ledger.killed(), ledger.verify())


def test_two_ledgers_merge_by_copying_files(tmp_path: Path) -> None:
    """Rounds of the same number and the chains of both machines live side by side."""
    ours, theirs = Ledger(tmp_path / "ours"), Ledger(tmp_path / "theirs")
    ours.write(closed_round("R000001-aaaa"))
    theirs.write(closed_round("R000001-bbbb"))
    chain_of(theirs).rename(chain_of(theirs).with_name("another.jsonl"))

    for path in sorted(theirs.root.rglob("*.json*")):
        copy = ours.root / path.relative_to(theirs.root)
        copy.write_bytes(path.read_bytes())

    assert ["R000001-aaaa", "R000001-bbbb"] == ours.ids()
    assert 2 == ours.verify()
    assert "R000002" == ours.new_id()[:7]
    ours.write(closed_round("R000002-cccc"))
    assert 3 == ours.verify()


# the chain


def test_every_closed_round_is_chained_and_a_running_one_is_not(three: Ledger) -> None:
    """In the order in which they closed."""
    three.write(stored_round("R000004-0004"))

    links = [json.loads(line) for line in chain_of(three).read_text().splitlines()]
    assert ["R000001-0001", "R000002-0002", "R000003-0003"] == [link["round"] for link in links]
    assert "0" * 64 == links[0]["prev_sha256"]
    assert 3 == three.verify()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_changed_round_is_named(three: Ledger, number: int) -> None:
    """One byte of any of them."""
    path = three.rounds / f"R00000{number}-000{number}.json"
    path.write_bytes(path.read_bytes().replace(b"a test", b"A test", 1))

    assert f"{path} was changed after it closed" == broken(three)


def test_the_first_of_several_is_named(three: Ledger) -> None:
    """Where the chain breaks, everything behind is in doubt."""
    for number in (3, 2):
        (three.rounds / f"R00000{number}-000{number}.json").unlink()

    path = three.rounds / "R000002-0002.json"
    assert f"{path} is missing; {chain_of(three)}:2 names it" == broken(three)


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], lines[2]], 2),
        (lambda lines: [lines[1], lines[0], lines[2]], 1),
        (lambda lines: [lines[0].replace("R000001", "R000009"), *lines[1:]], 1),
    ],
)
def test_a_line_that_was_removed_moved_or_changed_is_named(
    three: Ledger, edit: Callable[[list[str]], list[str]], line: int
) -> None:
    """With the chain's file and the line."""
    lines = chain_of(three).read_text().splitlines()
    chain_of(three).write_text("\n".join(edit(lines)) + "\n")

    assert f"{chain_of(three)}:{line}" in broken(three)


def test_a_last_line_that_was_removed_is_noticed(three: Ledger) -> None:
    """A closed round that no chain names was hidden from it."""
    lines = chain_of(three).read_text().splitlines()
    chain_of(three).write_text("\n".join(lines[:-1]) + "\n")

    assert "R000003-0003" in broken(three)


@pytest.mark.parametrize("garbage", ["{", "[]", '{"round": "R000001-0001"}', "\x00"])
def test_a_chain_that_cannot_be_read_is_named(three: Ledger, garbage: str) -> None:
    """Half a line, as a crash leaves it; never a traceback."""
    with chain_of(three).open("a") as file:
        file.write(garbage)

    with pytest.raises((HardStop, InputError)) as caught:
        three.verify()
    assert f"{chain_of(three)}:4" in str(caught.value)


# killed rounds


def test_rounds_that_say_they_run_are_found_and_can_be_closed(three: Ledger) -> None:
    """Whoever holds the lock knows that nobody runs them."""
    running = stored_round("R000004-0004")
    three.write(running)

    (found,) = three.killed()
    three.write(close_killed(found))

    assert running == found
    assert [] == three.killed()
    closed = three.read("R000004-0004")
    assert closed.failure is not None
    assert ("closed", "killed", None, None) == (closed.status, closed.failure.kind, closed.verdict, closed.secret_hex)
    assert 4 == three.verify()


def test_a_commitment_is_the_hash_of_the_secret() -> None:
    """Anybody can check it when the secret is revealed."""
    assert "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d" == commitment("00")


# the lock


def test_a_ledger_held_by_another_process_names_it(ledger: Ledger) -> None:
    """And is free again as soon as that process is gone, however it went."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(ledger.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert "held\n" == holder.stdout.readline()
        with pytest.raises(UnfitError) as caught, ledger.locked():
            pass
        holder.kill()

    assert "another round is running here (pid " in str(caught.value)
    assert f"pid {holder.pid} (" in str(caught.value)
    with ledger.locked():
        assert str(os.getpid()) in (ledger.root / ".lock-holder.json").read_text()
    assert not (ledger.root / ".lock-holder.json").exists()


def test_a_lock_is_released_when_its_round_fails(ledger: Ledger) -> None:
    """And a failure goes on as it is."""
    with pytest.raises(KeyError), ledger.locked():
        raise KeyError

    with ledger.locked():
        pass


def test_a_ledger_that_cannot_be_made_is_unfit(tmp_path: Path) -> None:
    """A file stands where the directory should."""
    (tmp_path / "file").touch()

    with pytest.raises(UnfitError, match="cannot be written"), Ledger(tmp_path / "file").locked():
        pass


# writing


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """The kernel refuses to let the file grow, as a full disk does."""
    path = tmp_path / "file"
    write_atomically(path, b"old")

    done = subprocess.run([sys.executable, "-c", FILL, str(path)], capture_output=True, text=True, check=False)

    assert "OSError: [Errno 27] File too large" in done.stderr
    assert (["file"], b"old") == (os.listdir(tmp_path), path.read_bytes())  # noqa: PTH208


def test_a_writer_that_is_killed_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    """At any instant; a reader never sees half of one."""
    path = tmp_path / "file"
    contents = {bytes([digit]) * 300_000 for digit in b"01"}

    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", ALTERNATE, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            seen = {path.read_bytes() for _ in range(10)}
            writer.kill()
        assert set() == (seen | {path.read_bytes()}) - contents


def test_a_file_is_readable_by_others(tmp_path: Path) -> None:
    """Temporary files are private; reports and rounds are not."""
    write_atomically(tmp_path / "a" / "b" / "file", b"x")

    assert 0o644 == (tmp_path / "a" / "b" / "file").stat().st_mode & 0o777


def test_a_directory_in_the_way_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The temporary file is gone too."""
    (tmp_path / "file" / "full").mkdir(parents=True)

    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "file", b"x")

    assert ["file"] == os.listdir(tmp_path)  # noqa: PTH208
