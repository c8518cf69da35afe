"""The clients that come with this repository's own environment, each driven by its command line."""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import MappingProxyType

from loop.client import Job
from loop.client_report import ClientReport
from loop.dialects import Request
from loop.replies import read_replies
from tests.perf.client_load import MODEL, Load, Prompts
from tests.perf.rust_client import extension_path

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Task:
    """What one run of a client is asked to do."""

    load: Load
    prompts: Prompts
    num_requests: int
    port: int
    directory: Path
    """Of this run alone."""

    @property
    def url(self) -> str:
        """Of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def num_tokens(self) -> int:
        """That all answers have together."""
        return self.num_requests * self.load.num_tokens


@dataclass(frozen=True)
class Reported:
    """What a client says in its own result file."""

    num_tokens: int
    duration_s: float
    """From the start of the first request to the end of the last one."""
    ttft_p50_ms: float
    tpot_p50_ms: float


class Client(ABC):
    """One way to send the load."""

    name: str
    num_rounds_unlimited: int
    """Requests of each stream where tokens leave as fast as they can: a second or two."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables that it is given beside those of this process."""

    @property
    @abstractmethod
    def version(self) -> str:
        """With the name of the package where that is another. Raises OSError if the client is not installed."""

    @abstractmethod
    def command(self, task: Task) -> list[str]:
        """What starts it; files may be written before."""

    def standard_input(self, task: Task) -> str:
        """What is written to it."""
        return ""

    @abstractmethod
    def reported(self, task: Task) -> Reported:
        """From its result files."""


class RawReader(Client):
    """The bound."""

    name = "raw asyncio reader (the bound)"
    num_rounds_unlimited = 16

    @property
    def version(self) -> str:
        """Of the event loop, which is all there is."""
        return f"uvloop {version('uvloop')}"

    def command(self, task: Task) -> list[str]:
        """A script of this folder."""
        texts = task.directory / "prompts.json"
        texts.write_text(json.dumps(task.prompts.texts[: task.num_requests]))
        numbers = (task.port, task.load.num_streams, task.load.num_tokens)
        result = task.directory / "result.json"
        return [sys.executable, "-m", "tests.perf.raw_reader", *map(str, numbers), str(texts), str(result)]

    def reported(self, task: Task) -> Reported:
        """All of its few numbers."""
        return Reported(**json.loads((task.directory / "result.json").read_text()))


class Ours(Client):
    """`python -m loop.client` with a job on its standard input, as `loop.measure.ClientProcess` starts it."""

    def __init__(self, dialect: str, path: str, *, num_rounds_unlimited: int) -> None:
        self.name = f"`loop`, `{path}`"
        self.num_rounds_unlimited = num_rounds_unlimited
        self._dialect = dialect

    @property
    def version(self) -> str:
        """Of the package."""
        return f"loop {version('sglang-loop')}"

    def command(self, task: Task) -> list[str]:
        """The same for every job."""
        wanted = {"max_new_tokens": task.load.num_tokens, "ignore_eos": True}
        requests = [
            Request(rid=f"r{number}", input_ids=ids, **wanted)
            for number, ids in enumerate(task.prompts.ids[: task.num_requests])
        ]
        job = Job(
            host="127.0.0.1",
            port=task.port,
            dialect=self._dialect,
            concurrency=task.load.num_streams,
            idle_timeout_s=PATIENCE_S,
            deadline_s=PATIENCE_S,
            requests=tuple(requests),
        )
        (task.directory / "job.json").write_text(job.model_dump_json())
        return [sys.executable, "-m", "loop.client"]

    def standard_input(self, task: Task) -> str:
        """One line: where the job is, where the replies go."""
        return json.dumps([str(task.directory / "job.json"), str(task.directory / "replies.zst")]) + "\n"

    def reported(self, task: Task) -> Reported:
        """The report that it prints last, and the replies that the product reads."""
        last_line = (task.directory / "stdout").read_text().splitlines()[-1]
        replies = read_replies(task.directory / "replies.zst")
        failures = [reply.error for reply in replies if reply.failure]
        if failures:
            raise ValueError(f"{len(failures)} requests failed: {failures[0]}")
        return Reported(
            num_tokens=sum(reply.num_tokens or 0 for reply in replies),
            duration_s=ClientReport.model_validate_json(last_line).wall_s,
            ttft_p50_ms=median(reply.ttft_ms or 0.0 for reply in replies),
            tpot_p50_ms=median(reply.tpot_ms or 0.0 for reply in replies),
        )


class BenchServing(Client):
    """SGLang's own benchmark."""

    environment = MappingProxyType({"HF_HUB_OFFLINE": "1"})

    def __init__(self, name: str, module: str, *, num_rounds_unlimited: int) -> None:
        self.name = name
        self.num_rounds_unlimited = num_rounds_unlimited
        self._module = module

    @property
    def version(self) -> str:
        """Of SGLang."""
        return f"sglang {version('sglang')}"

    def command(self, task: Task) -> list[str]:
        """No warm-up request, so that every request is one that counts; the rest as it comes."""
        return [
            *(sys.executable, "-m", self._module, "--backend", "sglang-oai", "--base-url", task.url),
            *("--model", str(task.prompts.tokenizer), "--served-model-name", MODEL),
            *("--tokenizer", str(task.prompts.tokenizer)),
            *("--dataset-name", "sharegpt", "--dataset-path", str(task.prompts.sharegpt)),
            *("--sharegpt-output-len", str(task.load.num_tokens), "--num-prompts", str(task.num_requests)),
            *("--max-concurrency", str(task.load.num_streams), "--warmup-requests", "0", "--disable-tqdm"),
            *("--output-file", str(task.directory / "result.jsonl")),
        ]  # fmt: skip

    def reported(self, task: Task) -> Reported:
        """Its one line."""
        found = json.loads((task.directory / "result.jsonl").read_text())
        return Reported(
            num_tokens=found["total_output_tokens"],
            duration_s=found["duration"],
            ttft_p50_ms=found["median_ttft_ms"],
            tpot_p50_ms=found["median_tpot_ms"],
        )


class RustClient(BenchServing):
    """SGLang's benchmark in Rust: the same options, the same result file."""

    @property
    def version(self) -> str:
        """Of SGLang, if its wheel has the extension."""
        extension_path()
        return super().version
