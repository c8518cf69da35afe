"""SGLang, on GPUs and, through this package's platform plugin, on any x86-64 CPU."""

import json
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from loop.engines import Denied, Engine
from loop.errors import UnfitError
from loop.flags import Flag, read_flags

_FIND = (
    "import importlib.metadata as m, importlib.util as u, json; s = u.find_spec('sglang');"
    "print(json.dumps([s and s.submodule_search_locations[0], s and m.version('sglang')]))"
)
"""Where sglang is and its version, without importing it."""

_PERSONAL = Denied(reason="it is the launcher's: where and as whom the server listens is not the candidate's choice")
_CHEAT = Denied(reason="it changes what the client sees of the work, not the work")
_SAMPLING = Denied(reason="it changes what the client asked for")
_LOGS = Denied(reason="logs are evidence and cost time; both arms must have the same")


class SGLang(Engine):
    """The engine this product is for."""

    name: ClassVar[str] = "sglang"
    command: ClassVar[tuple[str, ...]] = (
        "-m", "sglang.launch_server",
        "--model-path", "{MODEL_PATH}", "--host", "{HOST}", "--port", "{PORT}",
    )  # fmt: skip
    platforms: ClassVar[dict[str, dict[str, Any]]] = {
        "cpu": {
            "entry_point": {
                "group": "sglang.srt.platforms",
                "name": "loop_cpu",
                "file": "cpu_platform.py",
                "attribute": "activate",
            },
            "env": {"HF_HUB_OFFLINE": "1"},
        },
        "*": {"env": {"HF_HUB_OFFLINE": "1"}},
    }
    ready_line: ClassVar[str] = "The server is fired up and ready to roll!"
    denied: ClassVar[Mapping[str, Denied]] = {
        **dict.fromkeys(("host", "port", "config", "api_key", "admin_api_key", "fastapi_root_path"), _PERSONAL),
        **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "nccl_port", "random_seed"), _PERSONAL),
        **dict.fromkeys(("log_level", "log_level_http", "log_requests", "log_requests_level"), _LOGS),
        "model_path": Denied(reason="another model is not a faster server"),
        "tokenizer_path": Denied(reason="another tokenizer changes the work"),
        "served_model_name": Denied(reason="it would hide which model answers"),
        "load_format": Denied(reason="dummy weights answer nothing", allows=lambda value: value != "dummy"),
        "json_model_override_args": Denied(reason="another model is not a faster server"),
        "stream_interval": _CHEAT,
        "speculative_accept_threshold_single": Denied(
            reason="below 1 it accepts tokens the model did not choose", allows=lambda value: float(value) >= 1
        ),
        "speculative_accept_threshold_acc": Denied(
            reason="below 1 it accepts tokens the model did not choose", allows=lambda value: float(value) >= 1
        ),
        "preferred_sampling_params": _SAMPLING,
        "sampling_defaults": _SAMPLING,
        "skip_server_warmup": Denied(reason="its first requests would pay for compilation"),
        "skip_tokenizer_init": Denied(reason="production must serve the OpenAI API"),
    }
    graphless: ClassVar[tuple[str, ...]] = ("--disable-cuda-graph",)
    volatile: ClassVar[frozenset[str]] = frozenset({"host", "port", "random_seed", "nccl_port", "dist_init_addr"})
    derived: ClassVar[Mapping[str, frozenset[str]]] = {
        # What `ServerArgs` resolution rewrites (SGLang 0.5.23, srt/arg_groups/*_hook.py).
        "speculative_algorithm": frozenset(
            {
                "max_running_requests",
                "disable_overlap_schedule",
                "speculative_num_steps",
                "speculative_eagle_topk",
                "speculative_num_draft_tokens",
                "speculative_draft_model_path",
                "page_size",
                "mem_fraction_static",
            }
        ),
        "attention_backend": frozenset({"page_size", "prefill_attention_backend", "decode_attention_backend"}),
        "chunked_prefill_size": frozenset({"max_prefill_tokens"}),
        "mamba_radix_cache_strategy": frozenset({"page_size", "disable_overlap_schedule"}),
        "enable_mixed_chunk": frozenset({"chunked_prefill_size"}),
        "disable_radix_cache": frozenset({"mamba_radix_cache_strategy", "disable_overlap_schedule"}),
    }

    @cached_property
    def _installed(self) -> tuple[Path, str]:
        """(package directory, version) as the server's interpreter finds them."""
        try:
            found = subprocess.run([self.python, "-c", _FIND], capture_output=True, text=True, timeout=60, check=False)
        except OSError as problem:
            raise UnfitError(
                f"the server's Python {self.python} cannot be run: {problem}",
                next="set LOOP_PYTHON or [engine] python in loop.toml",
            ) from None
        directory, version = json.loads(found.stdout) if found.returncode == 0 else (None, "")
        if directory is None:
            raise UnfitError(
                f"{self.python} has no sglang",
                next="set LOOP_PYTHON or [engine] python in loop.toml to a Python that has it",
            )
        return Path(directory), str(version)

    @cached_property
    def version(self) -> str:
        """The installed SGLang's version."""
        return self._installed[1]

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Read from the installed SGLang's source."""
        return read_flags(self._installed[0])
