"""Kernels: sources built once on the machine that serves them. Standard library only."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .overlay import SAFE, BuildError, build_verified

TIMEOUT_S = 1800
TAIL_LINES = 20
IMPORT = """
import importlib, pathlib, py_compile, sys
for name in sys.argv[1:]:
    py_compile.compile(name, doraise=True)
    sys.path.insert(0, str(pathlib.Path(name).parent))
    importlib.import_module(pathlib.Path(name).stem)
"""


def build_kernels(
    kernels: list[dict[str, Any]], read: Callable[[str], bytes], runtime: Path, device: str, env: dict[str, str]
) -> dict[str, str]:
    """`LOOP_KERNEL_<NAME>` → what was built. One that may fall back and cannot be built has none.

    Raises BuildError with the end of the build's log for one that may not.
    """
    built = {}
    for kernel in kernels:
        try:
            path = _build(kernel, read, runtime, device, env)
        except BuildError as problem:
            if kernel["fallback"] != "original":
                raise
            print(f"loop: {problem}; served without it", file=sys.stderr, flush=True)
            continue
        built[f"LOOP_KERNEL_{kernel['name'].upper()}"] = str(path)
    return built


def _build(
    kernel: dict[str, Any], read: Callable[[str], bytes], runtime: Path, device: str, env: dict[str, str]
) -> Path:
    output = kernel["output"] or ("" if kernel["language"] == "triton" else f"{kernel['name']}.so")
    argv = [part.replace("{output}", output).replace("{python}", sys.executable) for part in kernel["build"]]
    argv = argv or _default_build(kernel, output)
    identity = [kernel, argv, device, sys.implementation.cache_tag]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    log = runtime / "kernels" / f"{key}.build.log"

    def fill(directory: Path) -> None:
        for name, sha256 in kernel["sources"].items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(read(sha256))
        _run(kernel["name"], argv, directory, log, env)
        if not (directory / output).exists():
            raise BuildError(f"kernel {kernel['name']}: its build made no {output}; its log is {log}", SAFE)

    return build_verified(runtime / "kernels" / key, fill) / output


def _default_build(kernel: dict[str, Any], output: str) -> list[str]:
    if kernel["language"] == "triton":
        return [sys.executable, "-c", IMPORT, *(name for name in kernel["sources"] if name.endswith(".py"))]
    sources = [name for name in kernel["sources"] if name.endswith((".cu", ".cpp", ".cc", ".c"))]
    return ["nvcc", "-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", output, *sources]


def _run(name: str, argv: list[str], directory: Path, log: Path, env: dict[str, str]) -> None:
    """Run a build where its sources are, its output in `log`, which outlives a failure."""
    try:
        with log.open("wb") as file:
            done = subprocess.run(
                argv,
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
        how = f"ended with exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        how = f"took more than {TIMEOUT_S} s"
    except OSError as problem:
        how = f"cannot be run: {problem.strerror}"
    if how:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:]) if log.exists() else ""
        raise BuildError(f"kernel {name}: {argv[0]} {how}; the end of {log}:\n{tail}", SAFE)
