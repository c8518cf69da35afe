"""The CPU platform in the SGLang that is installed: when it applies, and a server started with no flags at all."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import loop.cpu_platform
from loop.synthetic import generate

pytestmark = [pytest.mark.real_sglang, pytest.mark.timeout(600)]

MODULE = Path(loop.cpu_platform.__file__)


def python(code: str, **env: str) -> str:
    """Last line that `code` prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def test_import_needs_the_standard_library_only() -> None:
    """The launcher copies the file into bare environments, so importing it must load nothing heavy."""
    code = "import sys, loop.cpu_platform; print(sorted({'torch', 'sglang', 'pydantic', 'numpy'} & set(sys.modules)))"
    assert python(code) == "[]"


def test_it_applies_on_a_plain_cpu_and_nowhere_else() -> None:
    """Without an accelerator it names its class; asked for SGLang's own CPU platform it steps aside."""
    code = "import loop.cpu_platform as p; print(p.activate())"
    assert python(code, CUDA_VISIBLE_DEVICES="") == "loop.cpu_platform:CpuPlatform"
    assert python(code, SGLANG_USE_CPU_ENGINE="1") == "None"
    shown = "import torch; torch.cuda.is_available = lambda: True; " + code
    assert python(shown) == "None"


def test_a_copy_under_another_name_works(tmp_path: Path) -> None:
    """The copied file names itself, so SGLang finds the class in the copy."""
    shutil.copyfile(MODULE, tmp_path / "copied_platform.py")
    code = (
        "import pkgutil, copied_platform as p; cls = pkgutil.resolve_name(p.activate()); "
        "print(cls.__module__, cls().is_out_of_tree(), cls().is_cpu(), cls().device_name)"
    )
    assert python(code, PYTHONPATH=str(tmp_path), CUDA_VISIBLE_DEVICES="") == "copied_platform True False cpu"


def test_sglang_chooses_it(tmp_path: Path) -> None:
    """SGLang's discovery finds the installed entry point and uses this class."""
    code = (
        "from sglang.srt.platforms import current_platform as p; "
        "print(type(p).__qualname__, p.get_default_attention_backend())"
    )
    assert python(code, CUDA_VISIBLE_DEVICES="", HOME=str(tmp_path)) == "CpuPlatform torch_native"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server on the tiny checkpoint, started with a model and a port only."""
    folder = tmp_path_factory.mktemp("server")
    model = generate(folder / "tiny")
    with serve(model, folder / "server.log") as url:
        yield url


@contextlib.contextmanager
def serve(model: Path, log: Path, *flags: str) -> Iterator[str]:
    """A real server, ready for requests; stopped with its whole process group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port), *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            if is_ready(url):
                break
            time.sleep(0.2)
        else:
            pytest.fail(f"no server: {log.read_text()[-3000:]}")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_ready(url: str) -> bool:
    """The server answers and has done its warm-up request."""
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def post(url: str, body: dict[str, Any]) -> Any:
    """The JSON answer to `body`."""
    reply = httpx.post(url, json=body, timeout=120).raise_for_status()
    return reply.json() if reply.text.startswith("{") else reply.text


def test_defaults_spare_every_flag(server: str) -> None:
    """The resolved configuration is one a plain CPU can run, and its KV pool does not take the machine."""
    info = httpx.get(f"{server}/server_info").json()
    expected = {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_overlap_schedule": True,
        "disable_radix_cache": False,
        "max_total_tokens": loop.cpu_platform.MAX_TOTAL_TOKENS,
        "max_running_requests": loop.cpu_platform.MAX_RUNNING_REQUESTS,
    }
    assert {key: info[key] for key in expected} == expected


def test_generation_repeats_with_and_without_the_radix_cache(server: str) -> None:
    """The same prompt gives the same tokens, cold and from the cache."""
    body = {
        "input_ids": list(range(300, 420)),
        "sampling_params": {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True},
    }
    cold, warm = post(f"{server}/generate", body), post(f"{server}/generate", body)
    assert cold["output_ids"] == warm["output_ids"]
    assert cold["meta_info"]["cached_tokens"] == 0
    assert warm["meta_info"]["cached_tokens"] > 0


def test_profiler_writes_a_trace(server: str, tmp_path: Path) -> None:
    """A CPU profile of a few steps can be taken over HTTP."""
    post(f"{server}/start_profile", {"output_dir": str(tmp_path), "activities": ["CPU"]})
    post(f"{server}/generate", {"input_ids": [300, 301], "sampling_params": {"max_new_tokens": 4, "temperature": 0}})
    post(f"{server}/stop_profile", {})
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.trace.json.gz")) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert list(tmp_path.rglob("*.trace.json.gz"))
