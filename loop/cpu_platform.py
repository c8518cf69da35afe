"""SGLang on a plain CPU, through its official out-of-tree platform API.

SGLang's own CPU platform (`SGLANG_USE_CPU_ENGINE=1`) needs the AMX build of `sgl_kernel`. This plugin, registered in
the entry-point group `sglang.srt.platforms`, lets the unmodified package serve on any x86-64 or arm64 host instead:
native PyTorch ops, `torch_native` attention, `pytorch` sampling. It is slow and exact, which is what a correctness
suite needs.

It steps aside wherever there is an accelerator: a production server must never fall back to the CPU in silence. Source
of the interface: sglang 0.5.23, `srt/platforms/interface.py` (hooks) and `srt/platforms/__init__.py` (discovery).

Standard library only at import time, and no name of its own package inside: the file is also copied alone into another
environment, beside a bare `*.dist-info` that declares the entry point.
"""

import os
from pathlib import Path
from typing import Any

MAX_TOTAL_TOKENS = 131_072  # tokens of KV cache, unless --max-total-tokens says otherwise
MAX_RUNNING_REQUESTS = 64  # requests at once, unless --max-running-requests says otherwise

# Device nodes, the torch attribute that says this build could use them, and the variable that hides them on purpose.
_NODES = (
    ("nvidia[0-9]*", "cuda", "CUDA_VISIBLE_DEVICES"),
    ("kfd", "hip", "HIP_VISIBLE_DEVICES"),
)


def activate() -> str | None:
    """Entry point: the qualified name of the platform class, or None where it does not apply."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return None  # the user asked for the in-tree CPU platform
    if _find_accelerator() is not None:
        return None
    return f"{__name__}:CpuPlatform"


def _find_accelerator() -> str | None:
    """Name of an accelerator that is present, or None.

    A device node counts even when torch cannot open it: that is a broken driver, and SGLang must say so rather than
    serve on the CPU. Only a variable such as `CUDA_VISIBLE_DEVICES=` (empty, or -1) hides the device on purpose.
    """
    import torch

    for name in ("cuda", "xpu", "npu", "hpu", "musa", "mps", "mtia"):  # ROCm answers as cuda
        backend = getattr(torch, name, None)
        probe = getattr(backend, "is_available", None)
        if probe is not None and probe():
            return name
    if torch.accelerator.is_available():  # any other backend, in-tree or not
        return str(torch.accelerator.current_accelerator())
    for pattern, build, variable in _NODES:
        hidden = os.environ.get(variable) in ("", "-1")
        if getattr(torch.version, build, None) and not hidden and any(Path("/dev").glob(pattern)):
            return build
    return None


def _build_platform() -> type:
    """The platform class, built on first use because its bases import torch."""
    import torch
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

    class CpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # sglang is untyped
        """A CPU that can do nothing special: no Triton, no graphs, no pinned memory, no speculation."""

        # OOT, not CPU: in-tree code reads CPU as "the AMX kernels are there".
        _enum = PlatformEnum.OOT
        capabilities = PlatformCapabilities()

        def get_device(self, device_id: int | None = 0) -> str:
            """`--device` when it is not given. A string: the caller splits it at the colon."""
            return "cpu"

        def get_default_attention_backend(self) -> str:
            return "torch_native"

        def apply_server_args_defaults(self, server_args: Any) -> None:
            """Defaults that spare the user flags; each only replaces what cannot work here."""
            if server_args.attention_backend in (None, "intel_amx"):  # in-tree default of `--device cpu`, needs AMX
                server_args.attention_backend = "torch_native"
            server_args.sampling_backend = "pytorch"
            server_args.disable_overlap_schedule = True  # no device whose work it could overlap with; no faster when on
            # Left alone, the KV pool takes 70 % of the host's memory and 11 s to clear, for a model of a few MB.
            if server_args.max_total_tokens is None:
                server_args.max_total_tokens = MAX_TOTAL_TOKENS
            if server_args.max_running_requests is None:
                server_args.max_running_requests = MAX_RUNNING_REQUESTS

        def get_torch_profiler_activity_str(self) -> str:
            """Not "CPU": core adds that activity itself, and a second profiler in one process fails."""
            return "NONE"

        def get_torch_profiler_activity(self) -> Any:
            return torch.profiler.ProfilerActivity.CPU

    CpuPlatform.__module__ = __name__
    CpuPlatform.__qualname__ = "CpuPlatform"
    return CpuPlatform


def __getattr__(name: str) -> Any:
    if name != "CpuPlatform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    platform = globals()[name] = _build_platform()
    return platform
