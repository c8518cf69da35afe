"""`launch_server.sh` as production uses it: a fresh read-only copy, a real SGLang, an OpenAI client."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from loop import dialects, plugins
from loop.host import free_port, port_open
from loop.measure import ClientProcess, replies_of, run_step
from loop.prompts import Prompt
from loop.schedule import Step
from loop.traffic import timed_requests
from loop.watch import Watcher
from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(900)]

READY_S = 300


def listing(root: Path) -> dict[str, int]:
    """Every file below `root` and its size."""
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """(launcher process, port, copy of the workspace), serving."""
    root = tmp_path_factory.mktemp("production")
    copy = root / "workspace"
    shutil.copytree(
        REPOSITORY, copy, ignore=shutil.ignore_patterns(".git", ".venv", "models", "tests", "raw", ".*_cache")
    )
    for path in [*copy.rglob("*"), copy]:
        path.chmod(path.stat().st_mode & 0o555)
    before = listing(copy)
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "MODEL_PATH": str(model), "LOOP_PYTHON": sys.executable}
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", str(copy / "launch_server.sh")],
            env={**environment, "LOOP_RUNTIME_DIR": str(root / "runtime")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S
    while b"fired up and ready to roll" not in (root / "log").read_bytes():
        assert process.poll() is None, (root / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.5)
    yield process, port, root
    tree = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    _, alive = psutil.wait_procs(tree, timeout=30)
    assert [] == alive
    assert not port_open(port)
    assert before == listing(copy)


def client(port: int) -> openai.OpenAI:
    """The official client, as production's users have it."""
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def test_the_launcher_becomes_the_server(served: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    """It `exec`s: the process that was started is SGLang, and it printed the bundle's hash first."""
    process, _, root = served

    assert "sglang.launch_server" in " ".join(psutil.Process(process.pid).cmdline())
    assert "loop: bundle original sha256" in (root / "log").read_text().splitlines()[0]


def test_chat_completions_answer(served: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    """Through the model's chat template."""
    answer = client(served[1]).chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "Say something."}],
        max_tokens=16,
        temperature=0,
    )

    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 16 == answer.usage.completion_tokens


def test_streaming_gives_the_same_answer(served: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    """Chunk by chunk."""
    api = client(served[1])
    whole = api.completions.create(model="default", prompt="Once upon a time", max_tokens=24, temperature=0)

    stream = api.completions.create(
        model="default", prompt="Once upon a time", max_tokens=24, temperature=0, stream=True
    )

    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


def test_a_long_prompt_is_served(served: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    """Longer than one prefill chunk of a small page."""
    answer = client(served[1]).completions.create(model="default", prompt="word " * 3000, max_tokens=4, temperature=0)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens >= 3000


@pytest.mark.parametrize("dialect", plugins.available(dialects))
def test_the_timed_client_reads_every_dialect_of_a_real_server(
    dialect: str, served: tuple[subprocess.Popen[bytes], int, Path], model: Path, tmp_path: Path
) -> None:
    """Exact counts, a first token before the last, and the same number of tokens whichever way they are asked for."""
    texts = [f"Write down the number {number}, and then the next ones." for number in range(4)]
    prompts = [
        Prompt(id=f"p{number}", category="normal", text=text, max_new_tokens=24) for number, text in enumerate(texts)
    ]
    requests = timed_requests(model, prompts, secret=b"a secret", workload="w", pass_index=0)

    with ClientProcess(tmp_path / "client.log") as client:
        measured = run_step(
            Step(kind="timed", workload="w"),
            requests,
            client=client,
            concurrency=2,
            port=served[1],
            dialect=dialect,
            directory=tmp_path,
            root=tmp_path,
            watcher=Watcher(),
        )

    replies = replies_of(measured, tmp_path)
    assert {} == measured.failures, [reply.error for reply in replies]
    assert [24] * 4 == [reply.num_tokens for reply in replies]
    assert all(reply.text for reply in replies)
    assert all(0 < (reply.ttft_ms or 0) < (reply.e2e_ms or 0) for reply in replies)
