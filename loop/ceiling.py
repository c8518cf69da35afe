"""The client's ceiling: how many tokens a second the timed client takes here from a server that is never slow."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loop.client import Job
from loop.dialects import Request
from loop.errors import UnfitError
from loop.host import MARK, free_port, port_open
from loop.measure import ClientProcess
from loop.record import Record
from loop.replies import read_replies
from loop.watch import Watcher

NUM_STREAMS = 64
TPOT_MS = 1.0
"""64,000 tokens a second are offered, each in a network read of its own as long as the client keeps up."""
TOKENS_PER_REQUEST = 256
PROMPT = tuple(range(1, 17))
START_TIMEOUT_S = 10.0
PROGRAM = (
    "import runpy; from loop.launch import die_with_parent; die_with_parent(); "
    "runpy.run_module('loop.fake_server', run_name='__main__')"
)
"""The fake server, which ends with this process however that ends."""


class Ceiling(Record):
    """What one run of the client came to."""

    num_tokens: int
    tokens_per_s: float
    cpu_us_per_token: float
    """Of the client alone."""


def measure_ceiling(seconds: float) -> Ceiling:
    """Send to the fake server for about this long; both share this machine, as they do in a round.

    Raises UnfitError if the fake server does not start or a request fails.
    """
    with tempfile.TemporaryDirectory(prefix="loop-ceiling-") as directory:
        root = Path(directory)
        with _fake_server(root / "server.log") as port, ClientProcess(root / "client.log") as client:
            first = _send(client, port, 1, root)  # imports and first requests are not what is asked
            per_pass_s = NUM_STREAMS * TOKENS_PER_REQUEST / first.tokens_per_s
            return _send(client, port, max(1, round(seconds / per_pass_s)), root)


def _send(client: ClientProcess, port: int, num_passes: int, root: Path) -> Ceiling:
    """`num_passes` requests on every stream."""
    requests = tuple(
        Request(rid=f"ceiling-{i}", input_ids=PROMPT, max_new_tokens=TOKENS_PER_REQUEST, ignore_eos=True)
        for i in range(num_passes * NUM_STREAMS)
    )
    job = Job(
        host="127.0.0.1",
        port=port,
        dialect="generate",
        concurrency=NUM_STREAMS,
        idle_timeout_s=10,
        deadline_s=30,
        requests=requests,
    )
    (root / "job.json").write_text(job.model_dump_json())
    report = client.send(root / "job.json", root / "replies.jsonl.zst", Watcher())
    replies = read_replies(root / "replies.jsonl.zst")
    failed = [reply for reply in replies if reply.failure]
    if failed:
        raise UnfitError(f"{len(failed)} of {len(replies)} requests failed with {failed[0].failure}: {failed[0].error}")
    num_tokens = sum(reply.num_tokens or 0 for reply in replies)
    return Ceiling(
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / report.wall_s,
        cpu_us_per_token=report.cpu_s / num_tokens * 1e6,
    )


@contextmanager
def _fake_server(log: Path) -> Iterator[int]:
    """The port of a fake server that lives inside."""
    port = free_port()
    command = [sys.executable, "-c", PROGRAM, "--model-path", "none", "--log-level", "error"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--ttft-ms", "0", "--tpot-ms", str(TPOT_MS)],
            env={**os.environ, MARK: f"ceiling-{os.getpid()}/fake"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not port_open(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise UnfitError(f"the fake server did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()
