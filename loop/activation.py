"""Activation: what a bundle's code needs in the server's environment before it starts. Standard library only."""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from .kernels import build_kernels
from .overlay import BuildError, build_overlay, build_verified, write_entry_points

CACHES = {
    "SGLANG_CACHE_DIR": "sglang",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUDA_CACHE_PATH": "cuda",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
}
"""Variables of compilers' caches: some of these hash no source, so each bundle with code has its own."""
WHITELISTS = {"sglang.srt.plugins": "SGLANG_PLUGINS"}
"""Plugin group → the variable that, once set, names the only plugins that are loaded."""
Read = Callable[[str], bytes]


def reader(directory: Path, way_out: str) -> Read:
    """A function that reads a file of the effective bundle in `directory` by its sha256, and proves it."""

    def read(sha256: str) -> bytes:
        path = directory / "files" / sha256
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise BuildError(f"{path} cannot be read: {problem.strerror}", way_out) from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise BuildError(f"{path} was edited after it was written", way_out)
        return content

    return read


def receipts_file(runtime: Path) -> str:
    """Where the receipts of this process and its children go, unless somebody said where."""
    return str(_folder(_writable(runtime) / "receipts") / f"{os.getpid()}.jsonl")


def activate(effective: dict[str, Any], read: Read, runtime: Path, device: str, env: dict[str, str]) -> None:
    """Build what is not built yet and put it into `env`. Raises BuildError if it cannot be served as measured."""
    content = effective["content"]
    caches = _writable(runtime) / "caches" / effective["sha256"][:16]
    env.update({name: str(caches / folder) for name, folder in CACHES.items() if name not in content["env"]})
    replaced = content.get("replaced", [])
    overlay = build_overlay(runtime, replaced, read) if replaced else None
    env.update(build_kernels(content.get("kernels", []), read, runtime, device, env))
    plugins = _build_plugins(effective, overlay, read, runtime, env)
    first = [str(path) for path in (overlay, plugins) if path]
    env["PYTHONPATH"] = os.pathsep.join([*first, *filter(None, [env.get("PYTHONPATH")])])


def _build_plugins(
    effective: dict[str, Any], overlay: Path | None, read: Read, runtime: Path, env: dict[str, str]
) -> Path:
    """A directory with the bundle's modules, the witness, and the entry points through which the engine loads them."""
    content, beside = effective["content"], Path(__file__).parent
    modules = {item["module"]: item["sha256"] for item in content.get("plugins", [])}
    modules |= {item["module"]: item["module_sha256"] for item in content.get("kernels", [])}
    bundle = {"modules": _watched(content.get("replaced", []), overlay), "plugins": _plugins(content)}
    points = {"loop_witness": "loop_witness:watch"}
    points |= {f"loop_{name}": f"loop_witness:load_{name}" for name in bundle["plugins"]}
    files = {f"{name}.py": read(sha256) for name, sha256 in modules.items()}
    files["loop_bundle.json"] = json.dumps(bundle, sort_keys=True).encode()
    files |= {f"loop_{name}.py": (beside / f"{name}.py").read_bytes() for name in ("receipts", "witness")}
    group = effective["plugin_group"]
    parts = [group, points, {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}]
    key = hashlib.sha256(json.dumps([parts, sys.implementation.cache_tag]).encode()).hexdigest()[:16]

    def fill(directory: Path) -> None:
        for name, data in files.items():
            (directory / name).write_bytes(data)
        write_entry_points(directory, "loop_bundle", group, points)

    variable = WHITELISTS.get(group)
    if variable and env.get(variable):
        env[variable] = ",".join([env[variable], *points])
    return build_verified(runtime / "plugins" / key, fill)


def _plugins(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Module → its entry, the receipt it leaves, and the variable without which it is not loaded."""
    plugins = {
        item["module"]: {"entry": item["entry"], "receipt": f"plugin:{item['module']}", "needs": ""}
        for item in content.get("plugins", [])
    }
    kernels = {
        item["module"]: {
            "entry": item["entry"],
            "receipt": f"kernel:{item['name']}",
            "needs": f"LOOP_KERNEL_{item['name'].upper()}",
        }
        for item in content.get("kernels", [])
    }
    return {**plugins, **kernels}


def _watched(replaced: list[dict[str, Any]], overlay: Path | None) -> dict[str, dict[str, str]]:
    """Module → where it must be loaded from, as what, and the receipt for it."""
    watched = {}
    for item in replaced:
        path = PurePosixPath(item["package"], item["path"])
        if path.suffix == ".py":
            parts = path.with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            receipt = f"overlay:{path}"
            watched[name] = {"file": f"{overlay}/{path}", "sha256": item["post_sha256"], "receipt": receipt}
    return watched


def _writable(runtime: Path) -> Path:
    """The runtime directory, or, where that was built beforehand and is read-only, a directory of one's own."""
    _folder(runtime)
    return runtime if os.access(runtime, os.W_OK) else Path(tempfile.gettempdir()) / f"sglang-loop-{os.getuid()}"


def _folder(path: Path) -> Path:
    """`path`, made if it can be."""
    with contextlib.suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
    return path
