"""/start_profile and /stop_profile: SGLang's answers, log lines and file names around a tiny trace."""

import gzip
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

LOG = logging.getLogger(__name__)
_DEFAULT_DIR = "/tmp"  # noqa: S108 - SGLang's own default
_KERNELS = ("fake_gemm_kernel", "fake_attention_kernel", "fake_norm_kernel")


class Profiler:
    """One profile at a time. A step is one chunk sent; with `num_steps` the profile ends by itself."""

    def __init__(
        self, hook: Callable[[Callable[[bool], None] | None], None], kernel_us: float, faults: Sequence[str] = ()
    ) -> None:
        self._hook = hook
        self._kernel_us = kernel_us
        self._faults = faults
        self._ask: dict[str, Any] | None = None
        self._steps: list[str] = []

    def start(self, ask: dict[str, Any]) -> None:
        """A second start while one runs is ignored, as in SGLang."""
        if self._ask is not None:
            LOG.warning("Profiling is already in progress.")
            return
        if "profile_ignored" in self._faults:
            return
        output_dir = ask.get("output_dir") or os.environ.get("SGLANG_TORCH_PROFILER_DIR", _DEFAULT_DIR)
        profile_id = ask.get("profile_id") or str(time.time())
        self._ask = ask | {"output_dir": output_dir, "profile_id": profile_id}
        self._steps = []
        LOG.info("Profiling starts. Traces will be saved to: %s (with profile id: %s)", output_dir, profile_id)
        self._hook(self._step)

    def stop(self) -> bool:
        """False if nothing was being profiled."""
        if self._ask is None:
            return False
        ask, self._ask = self._ask, None
        self._hook(None)
        folder = Path(ask["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        prefix = f"{ask['profile_prefix']}-" if ask.get("profile_prefix") else ""
        stages = ("-EXTEND", "-DECODE") if ask.get("profile_by_stage") else ("",)
        for stage in stages:
            file = folder / f"{prefix}{ask['profile_id']}-TP-0{stage}.trace.json.gz"
            self._save(file, gzip.compress(orjson.dumps(_trace(self._steps or ["step[IDLE]"], self._kernel_us))))
        LOG.info("Profiling done. Traces are saved to: %s", ask["output_dir"])
        return True

    def _save(self, file: Path, content: bytes) -> None:
        """Whole, at once and now, but for the faults."""
        if "trace_missing" in self._faults:
            return
        file.write_bytes(content[: len(content) // 2] if "trace_cut" in self._faults else content)
        if "trace_stale" in self._faults:
            os.utime(file, (time.time() - 3600, time.time() - 3600))

    def _step(self, is_first: bool) -> None:  # noqa: FBT001 - the scheduler calls it with what it knows
        self._steps.append("step[EXTEND bs=1 toks=16]" if is_first else "step[DECODE bs=1]")
        wanted = self._ask and self._ask.get("num_steps")
        if wanted and len(self._steps) >= int(wanted):
            self.stop()


def _trace(steps: Sequence[str], kernel_us: float) -> dict[str, Any]:
    """Chrome trace events as torch.profiler writes them: per step SGLang's span, and a launch and a kernel each."""
    events: list[dict[str, Any]] = []
    for step, name in enumerate(steps):
        start_us = 1000.0 * step
        events.append(_event("user_annotation", name, start_us, 900.0, tid=1))
        for n, kernel in enumerate(_KERNELS):
            launch_us = start_us + 200 * n
            correlation = {"correlation": step * len(_KERNELS) + n + 1}
            events.append(_event("cuda_runtime", "cudaLaunchKernel", launch_us, 5.0, tid=1, args=correlation))
            events.append(_event("kernel", kernel, launch_us + 20, kernel_us, tid=7, args=correlation | {"stream": 7}))
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}


def _event(
    category: str, name: str, start_us: float, duration_us: float, tid: int, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    pid = 0 if category == "kernel" else os.getpid()
    event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start_us, "dur": duration_us}
    return event | {"args": args or {}}
