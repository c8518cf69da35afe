"""The machine: ports, marked processes, a model's identity, and what makes hosts incomparable."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loop.errors import UnfitError
from loop.host import (
    MARK,
    end_processes,
    free_port,
    hash_model,
    machine_name,
    marked_processes,
    port_open,
    read_host,
    read_revision,
    refuse_full,
)

SLEEP = "import time; time.sleep(60)"
# The parent starts a child in a session of its own, says its pid, and ends.
DETACH = f"""
import subprocess, sys
quiet = {{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}}
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True, **quiet)
print(child.pid)
child.returncode = 0
"""


def git(root: Path, *arguments: str) -> str:
    """Run git in `root` as somebody."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@contextmanager
def marked(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A sleeping process that carries a mark."""
    with subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env={**os.environ, MARK: mark}) as process:
        try:
            yield process
        finally:
            process.kill()


def pids(mark: str) -> list[int]:
    """The marked processes' ids."""
    return [process.pid for process in marked_processes(mark)]


def wait_for(mark: str, expected: list[int]) -> None:
    """Until exactly these processes carry the mark: a process has its own environment a moment after it started."""
    deadline = time.monotonic() + 10
    while pids(mark) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ports


def test_a_free_port_is_closed_until_somebody_listens() -> None:
    """And closed again after."""
    port = free_port()

    assert not port_open(port)
    with socket.create_server(("127.0.0.1", port)):
        assert port_open(port)
    assert not port_open(port)


# processes


def test_a_marked_process_is_found_until_it_ends() -> None:
    """By a prefix of its mark: the round, or one of its sessions."""
    with marked("Rtest-1/A1") as process:
        wait_for("Rtest-1/A1", [process.pid])

        assert [process.pid] == pids("Rtest-1/")
        assert [] == pids("Rtest-1/B")
        assert [] == pids("Rtest-11/")
        end_processes(list(marked_processes("Rtest-1/")), grace_s=10)
        assert [] == pids("Rtest-1/")


def test_a_child_that_detached_itself_is_found_after_its_parent_ended() -> None:
    """Neither its group nor its parent tells; its environment does."""
    env = {**os.environ, MARK: "Rtest-2/B"}
    done = subprocess.run([sys.executable, "-S", "-c", DETACH], env=env, capture_output=True, text=True, check=True)
    child = int(done.stdout)
    try:
        wait_for("Rtest-2/", [child])
        assert 1 == len(list(marked_processes("Rtest-2/B")))
    finally:
        end_processes([psutil.Process(child)], grace_s=10)
    assert [] == pids("Rtest-2/")


def test_other_processes_are_not_found() -> None:
    """Neither ours nor one whose variable only ends alike."""
    with subprocess.Popen([sys.executable, "-S", "-c", SLEEP], env={f"X{MARK}": "Rtest-3/B"}) as process:
        try:
            assert [] == pids("Rtest-3/")
        finally:
            process.kill()


def test_ending_what_has_ended_already_is_no_error() -> None:
    """It may go between being found and being killed."""
    with marked("Rtest-4/B") as process:
        found = psutil.Process(process.pid)
    end_processes([found], grace_s=1)

    assert not found.is_running()


# the model


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may spoil."""
    return shutil.copytree(model, tmp_path / "model")


def test_a_copied_model_is_the_same_model(model: Path, copy: Path) -> None:
    """Wherever it lies, and whatever hidden files a download left."""
    (copy / ".gitattributes").write_text("x")
    (copy / ".cache").mkdir()

    assert hash_model(model) == hash_model(copy)


def test_a_byte_of_any_file_makes_another_model(copy: Path) -> None:
    """Config, tokenizer and weights."""
    before = hash_model(copy)
    for path in sorted(copy.iterdir()):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert before != hash_model(copy), path.name
        path.write_bytes(data)
    assert before == hash_model(copy)


def test_a_file_more_or_of_another_name_makes_another_model(copy: Path) -> None:
    """An index or an adapter changes what is loaded."""
    before = hash_model(copy)
    (copy / "generation_config.json").write_text("{}")
    added = hash_model(copy)
    (copy / "generation_config.json").rename(copy / "other.json")

    assert 3 == len({before, added, hash_model(copy)})


def test_the_ends_of_a_large_file_are_read(tmp_path: Path) -> None:
    """Sparse here: 65 MiB of which nothing is stored."""
    large = tmp_path / "model.safetensors"

    def digest(*, size: int, at: int | None = None) -> str:
        with large.open("wb") as file:
            file.truncate(size)
            if at is not None:
                file.seek(at)
                file.write(b"x")
        return hash_model(tmp_path)

    size = 65 << 20
    hashes = [digest(size=size), digest(size=size + 1), digest(size=size, at=0), digest(size=size, at=size - 1)]

    assert 4 == len(set(hashes))


# the machine


def test_this_machine_can_be_described() -> None:
    """With what a fingerprint needs."""
    found = read_host()

    assert machine_name() == found.machine
    assert found.num_cpus >= 1
    assert found.memory_bytes > 1 << 20
    assert found.cpu


def test_a_name_is_safe_for_a_file() -> None:
    """It names the chain's file."""
    assert [] == [character for character in machine_name() if not (character.isalnum() or character in ".-")]


# the revision


def test_outside_of_git_there_is_no_commit(tmp_path: Path) -> None:
    """And nothing to be dirty."""
    revision = read_revision(tmp_path)

    assert (None, ()) == (revision.commit, revision.dirty)


def test_what_changed_in_the_judge_is_listed(tmp_path: Path) -> None:
    """Changed or new, in its own folders; candidates may change."""
    for name in ("loop/a.py", "workloads/s/suite.toml", "launch_server.sh", "candidates/x/bundle.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    (tmp_path / "candidates" / "x" / "bundle.toml").write_text("2\n")

    clean = read_revision(tmp_path)
    (tmp_path / "loop" / "a.py").write_text("2\n")
    (tmp_path / "workloads" / "s" / "new.jsonl").write_text("2\n")
    dirty = read_revision(tmp_path)

    assert (git(tmp_path, "rev-parse", "HEAD"), ()) == (clean.commit, clean.dirty)
    assert ("loop/a.py", "workloads/s/new.jsonl") == dirty.dirty


def test_a_full_disk_is_refused_before_anything_is_lost(tmp_path: Path) -> None:
    """Also where the directory is still to be made."""
    refuse_full(tmp_path / "ledger" / "raw")

    with pytest.raises(UnfitError, match=r"has [\d.]+ MiB left; a round needs 1099511627776 MiB for its records"):
        refuse_full(tmp_path / "ledger" / "raw", min_free_bytes=1 << 60)
