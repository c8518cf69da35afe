"""SGLang's own torch profiler: `/start_profile`, and the trace that it saves, proven before it is believed.

What goes wrong with it (SGLang 0.5.15 to 0.5.23): a second start while a profile runs is answered with 200 and ignored;
the answer comes before anything is saved; files are not written atomically; a name that is not chosen is a time of day.
"""

import gzip
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx

from loop.errors import UnfitError
from loop.profilers import LoadName, Profiler, Target
from loop.wording import count

SAVED = "Profiling done. Traces are saved to: "
POLL_S = 0.1
SETTLE_S = 2.0
"""For every rank: those that are not first say nothing of their own in some releases."""
BLOCK_BYTES = 1 << 20


class TorchTrace(Profiler):
    """A few steps of every rank: kernels, operators, and Python stacks if asked."""

    name: ClassVar[str] = "torch_trace"
    loads: ClassVar[tuple[LoadName, ...]] = ("prefill", "decode")
    is_alone: ClassVar[bool] = True

    num_steps: int = 5
    """Decode steps; a prefill is as many prompts."""
    with_stack: bool = True
    """Python frames. They slow the host several times, so that gaps between kernels mean nothing."""
    record_shapes: bool = True
    started_s: float = 60.0
    """The first profile of a server loads CUPTI."""
    saved_s: float = 300.0
    """Traces with stacks take a second for every few megabytes."""

    def check(self, target: Target) -> None:
        """Nothing is needed that SGLang has not."""

    @contextmanager
    def watch(self, target: Target, load: LoadName, directory: Path) -> Iterator[None]:
        """Start, and wait until the log says that it has; at the end stop, and wait for every rank's whole trace.

        A decode profile ends by itself after its steps; a prefill profile when the prompts have been answered.
        """
        profile_id = f"{load}-{secrets.token_hex(4)}"
        began_s, size = time.time(), _size(target.log)
        self._ask(target, "/start_profile", self._wish(target, load, directory, profile_id))
        self._wait_started(target, size, profile_id)
        yield
        self._stop(target, size)
        self._wait_saved(target, size, directory, profile_id, began_s)

    def _wish(self, target: Target, load: LoadName, directory: Path, profile_id: str) -> dict[str, Any]:
        wish = {
            "output_dir": str(directory.resolve()),
            "profile_id": profile_id,
            "activities": ["CPU", "GPU"] if target.has_gpu else ["CPU"],
            "with_stack": self.with_stack,
            "record_shapes": self.record_shapes,
        }
        return {**wish, "num_steps": self.num_steps} if load == "decode" else wish

    def _wait_started(self, target: Target, size: int, profile_id: str) -> None:
        """The answer is 200 whatever happens; only the log says whose profile runs."""
        deadline = time.monotonic() + self.started_s
        while profile_id not in _read_from(target.log, size):
            if time.monotonic() > deadline:
                raise UnfitError(
                    f"the server accepted profile {profile_id} and did not begin it within {self.started_s:.0f} s",
                    next=f"read {target.log}: another profile may be running",
                )
            time.sleep(POLL_S)

    def _stop(self, target: Target, size: int) -> None:
        """It may have ended by itself already: an idle profiler answers 500."""
        if SAVED not in _read_from(target.log, size):
            self._ask(target, "/stop_profile", {}, accept=(200, 500))

    def _wait_saved(self, target: Target, size: int, directory: Path, profile_id: str, began_s: float) -> None:
        """Every rank says so in the log, and every rank's file is whole and of this profile.

        What was said to be saved is not written any more: a second later at the latest it must be there.
        """
        deadline = time.monotonic() + self.saved_s
        said = False
        while time.monotonic() < deadline:
            if not said and SAVED in _read_from(target.log, size):
                said, deadline = True, min(deadline, time.monotonic() + SETTLE_S * target.num_ranks)
            traces = sorted(directory.glob(f"*{profile_id}*.trace.json.gz"))
            if said and len(traces) >= target.num_ranks and not any(find_problem(path, began_s) for path in traces):
                return
            time.sleep(POLL_S)
        raise UnfitError(
            self._complain(target, directory, profile_id, began_s, said=said),
            next=f"read {target.log}, then profile again",
        )

    def _complain(self, target: Target, directory: Path, profile_id: str, began_s: float, *, said: bool) -> str:
        """What is wrong with the traces that should be there."""
        if not said:
            return f"the server did not say within {self.saved_s:.0f} s that profile {profile_id} is saved"
        traces = sorted(directory.glob(f"*{profile_id}*.trace.json.gz"))
        problems = [problem for path in traces if (problem := find_problem(path, began_s))]
        if problems:
            return problems[0]
        strangers = [path.name for path in directory.iterdir() if path not in traces]
        found = f"; {directory} holds {strangers[0]}, which is of another profile" if strangers else ""
        wrote = f"{len(traces)} of {count(target.num_ranks, 'rank')} wrote a trace"
        return f"the server says that profile {profile_id} is saved, and {wrote}{found}"

    def _ask(self, target: Target, path: str, body: dict[str, Any], accept: tuple[int, ...] = (200,)) -> None:
        try:
            answer = httpx.post(target.url + path, json=body, timeout=self.saved_s, trust_env=False)
        except httpx.HTTPError as problem:
            raise UnfitError(f"the server did not answer {path}: {problem}", next=f"read {target.log}") from None
        if answer.status_code not in accept:
            raise UnfitError(
                f"the server answered {path} with HTTP {answer.status_code}: {answer.text[:200]}",
                next=f"read {target.log}",
            )


def find_problem(path: Path, began_s: float) -> str | None:
    """Why a trace cannot be believed: it is older than its profile, cut off, or no trace; None if it can be."""
    if path.stat().st_mtime < began_s - 1:
        return f"{path} is older than the profile that should have written it"
    if path.stat().st_size == 0:
        return f"{path} is empty"
    head, complete = b"", b"}"
    try:
        with gzip.open(path) as file:
            while block := file.read(BLOCK_BYTES):
                head = head or block
                complete = block.rstrip()[-1:] or complete
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        return f"{path} is cut off: {problem}"
    if b"traceEvents" not in head and b"schemaVersion" not in head:
        return f"{path} is no trace"
    return None if complete == b"}" else f"{path} is cut off: the JSON ends in the middle"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(log: Path, offset: int) -> str:
    """What the server has said since."""
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode(errors="replace")
