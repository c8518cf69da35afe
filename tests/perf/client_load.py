"""What every client is given: the same prompts in the files that each can read, and a fake server for each load.

The server's answers are words of its own list, one token each. A tokenizer that knows exactly these words counts
prompts and answers as the server does, so no client disagrees about how many tokens there were.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import httpx
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from loop.fake_server.vocabulary import internal_vocabulary
from loop.host import free_port, port_open

MODEL = "fake"
NUM_PROMPT_TOKENS = 32
UNKNOWN = "[UNK]"
END = "</s>"
START_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Load:
    """So many streams, each of which asks for the next answer when it has the last one."""

    name: str
    ttft_ms: float
    tpot_ms: float
    num_tokens: int
    """Of every answer."""
    num_streams: int

    @property
    def unlimited(self) -> bool:
        """Whether tokens leave as fast as they can."""
        return self.tpot_ms == 0

    @property
    def offered_tokens_per_s(self) -> float:
        """While all streams stream."""
        return self.num_streams / self.tpot_ms * 1e3

    @property
    def most_tokens_per_s(self) -> float:
        """What a perfect client gets: every answer begins with a TTFT without tokens."""
        return self.num_streams * self.num_tokens / (self.ttft_ms + (self.num_tokens - 1) * self.tpot_ms) * 1e3


class Prompts:
    """Prompts of known length, and the files that hold them."""

    def __init__(self, directory: Path, number: int) -> None:
        vocabulary = internal_vocabulary()
        words = [word[0] for word in vocabulary.words]
        rng = Random(1)
        chosen = [rng.choices(words, k=NUM_PROMPT_TOKENS) for _ in range(number)]
        self.texts = ["".join(word.text for word in prompt) for prompt in chosen]
        self.ids = [tuple(word.id for word in prompt) for prompt in chosen]
        self.tokenizer = directory / "tokenizer"
        self.sharegpt = directory / "sharegpt.json"
        write_tokenizer(self.tokenizer, [word.text for word in words])
        talks = [{"conversations": [{"value": text}, {"value": text}]} for text in self.texts]
        self.sharegpt.write_text(json.dumps(talks))


def write_tokenizer(directory: Path, words: Sequence[str]) -> None:
    """One token for each of the server's words, in the files that `transformers` reads."""
    directory.mkdir(parents=True)
    ids = {text: number for number, text in enumerate([UNKNOWN, END, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" [a-zé]+"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([UNKNOWN, END])
    tokenizer.save(str(directory / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": UNKNOWN, "eos_token": END}
    (directory / "tokenizer_config.json").write_text(json.dumps(described | {"clean_up_tokenization_spaces": False}))
    # `AutoTokenizer` asks what kind of model it is; any that has no tokenizer code of its own will do.
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(ids)}))


class FakeServer:
    """The fake server in a process of its own, with the delays of one load."""

    def __init__(self, load: Load, log: Path) -> None:
        self.port = free_port()
        self._log = log
        self._command = [
            *(sys.executable, "-m", "loop.fake_server", "--model-path", "none", "--served-model-name", MODEL),
            *("--port", str(self.port), "--ttft-ms", str(load.ttft_ms), "--tpot-ms", str(load.tpot_ms)),
            *("--enable-metrics", "--disable-radix-cache", "--log-level", "warning"),
        ]  # fmt: skip

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not port_open(self.port):
            if time.monotonic() > give_up_s or self._process.poll() is not None:
                self._process.kill()
                raise RuntimeError(f"the fake server did not start: {self._log.read_text()}")
            time.sleep(0.02)
        self._control = httpx.Client(base_url=self.url, trust_env=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.terminate()
        self._process.wait(timeout=10)

    @property
    def pid(self) -> int:
        """Of its one process."""
        return self._process.pid

    def counts(self) -> tuple[int, int]:
        """(requests begun, tokens sent) since its start."""
        lines = self._control.get("/metrics").text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        label = f'{{model_name="{MODEL}"}}'
        requests, tokens = (
            int(values[f"sglang:{name}{label}"]) for name in ("num_requests_total", "generation_tokens_total")
        )
        return requests, tokens
