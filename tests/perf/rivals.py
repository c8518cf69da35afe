"""The clients that need environments of their own: installing them, driving them, reading their result files."""

import json
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path

from tests.perf.client_load import MODEL, NUM_PROMPT_TOKENS
from tests.perf.clients import Client, Reported, Task

INSTALL_TIMEOUT_S = 1800


class Rival(Client):
    """A client in a virtual environment below the rivals' directory."""

    package: str
    pinned: str

    def __init__(self, directory: Path) -> None:
        self.home = directory / self.name
        self._log = directory / f"{self.name}.install.log"

    @property
    def program(self) -> Path:
        """Its command."""
        return self.home / "bin" / self.name

    @cached_property
    def version(self) -> str:
        """As pip installed it; an OSError says why it is not there."""
        if not self.program.exists():
            why = self._log.read_text() if self._log.exists() else "not installed: run with --install first"
            raise OSError(why.strip()[-600:])
        asked = f"from importlib.metadata import version; print(version({self.package!r}))"
        found = subprocess.check_output([self.home / "bin" / "python", "-c", asked], text=True)
        return f"{self.package} {found.strip()}"

    def install(self) -> None:
        """A virtual environment with the pinned version, compiled; what fails is kept to be told."""
        if self.program.exists():
            return
        self.home.parent.mkdir(parents=True, exist_ok=True)
        python = self.home / "bin" / "python"
        for command in (
            [sys.executable, "-m", "venv", self.home],
            [python, "-m", "pip", "install", "--quiet", "--compile", f"{self.package}=={self.pinned}"],
        ):
            print(*command, flush=True)
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S, env=plain_environment()
            )
            if done.returncode:
                shown = " ".join(map(str, command))
                self._log.write_text(f"`{shown}` failed: {done.stderr.strip()[-400:]}")
                return
        self._log.unlink(missing_ok=True)


class GuideLLM(Rival):
    """The vLLM project's load generator: httpx in several processes."""

    name = "guidellm"
    package = "guidellm"
    pinned = "0.8.1"
    num_rounds_unlimited = 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # Its default, ten processes, is ten interpreters that import PyTorch before every run.
        workers = str(os.cpu_count() or 1)
        self.environment = {"GUIDELLM__MAX_WORKER_PROCESSES": workers, "HF_HUB_OFFLINE": "1"}

    def command(self, task: Task) -> list[str]:
        """Prompts from a file, lengths from its columns."""
        counts = {"prompt_tokens_count": NUM_PROMPT_TOKENS, "output_tokens_count": task.load.num_tokens}
        rows = [{"prompt": text, **counts} for text in task.prompts.texts[: task.num_requests]]
        data = write_lines(task.directory / "data.jsonl", rows)
        return [
            *(str(self.program), "run", "--disable-console"),
            *("--backend", f"kind=openai_http,target={task.url},model={MODEL},request_format=/v1/completions"),
            *("--profile", f"kind=concurrent,streams={task.load.num_streams}"),
            *("--constraint", f"kind=max_requests,count={task.num_requests}"),
            *("--tokenizer", f"kind=huggingface_auto,model={task.prompts.tokenizer}"),
            *("--data", f"kind=json_file,path={data}"),
            *("--output", f"kind=json,path={task.directory / 'result.json'}"),
        ]

    def reported(self, task: Task) -> Reported:
        """Its `inter_token_latency` is what others call TPOT; its own `time_per_output_token` counts the TTFT in."""
        (benchmark,) = json.loads((task.directory / "result.json").read_text())["benchmarks"]
        times = benchmark["scheduler_metrics"]
        metrics = {name: spread["successful"] for name, spread in benchmark["metrics"].items() if is_split(spread)}
        return Reported(
            num_tokens=round(metrics["output_token_count"]["total_sum"]),
            duration_s=times["request_end_time"] - times["request_start_time"],
            ttft_p50_ms=metrics["time_to_first_token_ms"]["median"],
            tpot_p50_ms=metrics["inter_token_latency_ms"]["median"],
        )


class AIPerf(Rival):
    """NVIDIA's load generator: aiohttp and uvloop in workers, records over ZeroMQ."""

    name = "aiperf"
    package = "aiperf"
    pinned = "0.13.0"
    num_rounds_unlimited = 1

    def command(self, task: Task) -> list[str]:
        """Without the telemetry that it would read beside the traffic."""
        rows = [{"text": text} for text in task.prompts.texts[: task.num_requests]]
        data = write_lines(task.directory / "data.jsonl", rows)
        return [
            *(str(self.program), "profile", "--model", MODEL, "--url", task.url),
            *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(task.prompts.tokenizer)),
            *("--input-file", str(data), "--custom-dataset-type", "single-turn"),
            *("--concurrency", str(task.load.num_streams), "--request-count", str(task.num_requests)),
            *("--extra-inputs", f"max_tokens:{task.load.num_tokens}", "--extra-inputs", "ignore_eos:true"),
            *("--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
            *("--artifact-dir", str(task.directory / "artifacts")),
        ]

    def reported(self, task: Task) -> Reported:
        """From its summary."""
        found = json.loads((task.directory / "artifacts" / "profile_export_aiperf.json").read_text())
        return Reported(
            num_tokens=round(found["total_osl"]["avg"]),
            duration_s=found["benchmark_duration"]["avg"],
            ttft_p50_ms=found["time_to_first_token"]["p50"],
            tpot_p50_ms=found["inter_token_latency"]["p50"],
        )


def is_split(spread: object) -> bool:
    """Whether a metric of guidellm is told by what became of the requests."""
    return isinstance(spread, dict) and "successful" in spread


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain_environment() -> dict[str, str]:
    """This process's, with modules compiled once and kept: a client must not compile itself beside the server."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
