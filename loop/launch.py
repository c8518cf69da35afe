"""The production path: start the server of an effective bundle. Standard library only.

`launch_server.sh` runs this file by path, with the server's own Python, in any container that has the engine;
`loop` itself need not be installed there. It `exec`s, so the process it was becomes the server.
"""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

EFFECTIVE_SCHEMA = "loop.effective/1"
SHIPPED_SCHEMA = "loop.shipped/1"
REQUIRED = {
    EFFECTIVE_SCHEMA: ("bundle", "sha256", "content", "command", "argv", "platforms", "seal"),
    SHIPPED_SCHEMA: ("devices",),
}
"""What each file must have."""
CODE = ("replaced", "plugins", "kernels", "transforms")
"""Parts of a content that are more than options and environment."""
PR_SET_PDEATHSIG = 1
SIGKILL = 9
HIGHEST_PORT = 65535
REWRITE = "`loop init` writes it anew, or restore it from git"
WAYS_OUT = {
    "safe": f"LOOP_NO_OVERLAY=1 serves this very file: {REWRITE}",
    "named": "LOOP_BUNDLE names it: name another directory, or unset LOOP_BUNDLE to serve what is shipped",
    "shipped": "start with LOOP_NO_OVERLAY=1 for the original configuration, or restore it from git",
    "original": REWRITE,
}
"""Why a bundle is served → what to do if it cannot be."""


class LaunchError(Exception):
    """The server cannot be started as measured: `what` is wrong with which file or variable, and the way out."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what)
        self.way_out = way_out


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value (the same line as in `loop/record.py`)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def find_device(environ: dict[str, str]) -> str:
    """The device that decides what is shipped here: `LOOP_DEVICE`, the first GPU's product name, or `cpu`."""
    if environ.get("LOOP_DEVICE"):
        return environ["LOOP_DEVICE"]
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.split(":", 1)[1].strip()
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return names.stdout.splitlines()[0].strip() if names.returncode == 0 and names.stdout.strip() else "cpu"


def read_json(path: Path, schema: str, way_out: str) -> dict[str, Any]:
    """The JSON object at `path`; raises LaunchError unless it carries `schema`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LaunchError(f"{path} does not exist", way_out) from None
    except (OSError, ValueError) as problem:
        raise LaunchError(f"{path} cannot be read: {problem}", way_out) from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        found = document.get("schema") if isinstance(document, dict) else None
        raise LaunchError(f"{path} has schema {found!r}; this launcher reads {schema!r}", way_out)
    missing = [name for name in REQUIRED[schema] if name not in document]
    if missing:
        raise LaunchError(f"{path} is incomplete: it lacks {', '.join(missing)}", way_out)
    return document


def shipped_entry(root: Path, device: str) -> dict[str, Any] | None:
    """What `candidates/shipped.json` names for `device`, or None where nothing is shipped."""
    entry = _read_pointer(root)["devices"].get(device)
    return dict(entry) if entry else None


def original_of(root: Path, device: str) -> str:
    """The bundle that is served on `device` while nothing is shipped."""
    return str(_read_pointer(root).get("originals", {}).get(device, "original"))


def _read_pointer(root: Path) -> dict[str, Any]:
    pointer = root / "candidates" / "shipped.json"
    return read_json(pointer, SHIPPED_SCHEMA, WAYS_OUT["shipped"]) if pointer.exists() else {"devices": {}}


def find_bundle(root: Path, device: str, environ: dict[str, str]) -> tuple[Path, str]:
    """(the directory whose `effective.json` is served, why): safe mode, `LOOP_BUNDLE`, shipped, or original."""
    if environ.get("LOOP_NO_OVERLAY") == "1":
        return root / "candidates" / "original", "safe"
    if environ.get("LOOP_BUNDLE"):
        return Path(environ["LOOP_BUNDLE"]), "named"
    entry = shipped_entry(root, device)
    if entry:
        return root / entry["directory"], "shipped"
    return root / "candidates" / original_of(root, device), "original"


def read_effective(directory: Path, way_out: str) -> dict[str, Any]:
    """The effective bundle in `directory`, its hash proven against its content."""
    path = directory / "effective.json"
    effective = read_json(path, EFFECTIVE_SCHEMA, way_out)
    unsealed = {name: value for name, value in effective.items() if name != "seal"}
    for value, claimed in ((effective["content"], effective["sha256"]), (unsealed, effective["seal"])):
        found = hashlib.sha256(canonical_json(value)).hexdigest()
        if found != claimed:
            raise LaunchError(f"{path} was edited: it hashes to {found[:16]}, it claims {str(claimed)[:16]}", way_out)
    return effective


def platform_of(effective: dict[str, Any], device: str) -> dict[str, Any]:
    """What the engine needs to run on `device` at all."""
    return dict(effective["platforms"].get(device) or effective["platforms"].get("*") or {})


def runtime_dir(environ: dict[str, str]) -> Path:
    """Where built things live: `LOOP_RUNTIME_DIR`, else the user's cache directory."""
    if environ.get("LOOP_RUNTIME_DIR"):
        return Path(environ["LOOP_RUNTIME_DIR"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "sglang-loop"
    home = Path(environ.get("HOME") or "/nonexistent")
    if os.access(home, os.W_OK):
        return home / ".cache" / "sglang-loop"
    return Path(tempfile.gettempdir()) / f"sglang-loop-{os.getuid()}"  # an unprivileged user without a home


def compose(effective: dict[str, Any], device: str, environ: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """(argv after the interpreter, environment) of the server.

    The platform's options come before the bundle's, so that a bundle that names one of them wins.
    """
    values = {
        "MODEL_PATH": environ["MODEL_PATH"],
        "MODEL_NAME": environ.get("MODEL_NAME", environ["MODEL_PATH"]),
        "HOST": environ.get("HOST") or "127.0.0.1",
        "PORT": environ["PORT"],
    }
    platform = platform_of(effective, device)
    command = [part.format_map(values) if part.startswith("{") else part for part in effective["command"]]
    argv = [*command, *platform.get("argv", []), *effective["argv"]]
    env = {**environ, **platform.get("env", {}), **effective["content"]["env"]}
    return argv, env


def beside(name: str) -> Any:
    """A module from beside this file, under a package name of its own: an installed `loop` may be another version."""
    package = sys.modules.setdefault("loop_launcher", ModuleType("loop_launcher"))
    package.__path__ = [str(Path(__file__).parent)]
    return importlib.import_module(f"loop_launcher.{name}")


def transform_model(effective: dict[str, Any], read: Any, environ: dict[str, str]) -> dict[str, str]:
    """The environment with `MODEL_PATH` naming what the bundle makes of the checkpoint; `MODEL_NAME` stays."""
    transforms = effective["content"].get("transforms")
    if not transforms:
        return environ
    runtime = runtime_dir(environ)
    model, applied = beside("transforms").transform_model(transforms, Path(environ["MODEL_PATH"]), read, runtime)
    for script, output in applied:
        beside("receipts").fired(f"model:{script[:16]}", "applied", output)
    return {**environ, "MODEL_NAME": environ["MODEL_PATH"], "MODEL_PATH": str(model)}


def provide_entry_point(platform: dict[str, Any], env: dict[str, str]) -> None:
    """Put the platform's plugin on PYTHONPATH where the server's Python does not have it installed."""
    point = platform.get("entry_point")
    if point is None or any(found.name == point["name"] for found in entry_points(group=point["group"])):
        return
    added = beside("overlay").build_plugin(runtime_dir(env), Path(__file__).parent / point["file"], point)
    env["PYTHONPATH"] = os.pathsep.join([str(added), *filter(None, [env.get("PYTHONPATH")])])


def prepare(
    effective: dict[str, Any], directory: Path, why: str, device: str, environ: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """(argv, environment) of the server, with everything built that it needs; in safe mode without any code."""
    code = why != "safe" and any(effective["content"].get(part) for part in CODE)
    if not code:
        argv, env = compose(effective, device, environ)
        provide_entry_point(platform_of(effective, device), env)
        return argv, env
    activation, build_error = beside("activation"), beside("overlay").BuildError
    os.environ.setdefault("LOOP_RECEIPTS", activation.receipts_file(runtime_dir(environ)))
    environ = {**environ, "LOOP_RECEIPTS": os.environ["LOOP_RECEIPTS"]}
    try:
        read = activation.reader(directory, WAYS_OUT[why])
        argv, env = compose(effective, device, transform_model(effective, read, environ))
        provide_entry_point(platform_of(effective, device), env)
        activation.activate(effective, read, runtime_dir(env), device, env)
    except build_error as problem:
        raise LaunchError(str(problem), problem.way_out) from None
    return argv, env


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that a killed `loop run` leaves no server."""
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        raise SystemExit(1)


def check_environment(environ: dict[str, str]) -> dict[str, str]:
    """The environment, `MODEL_PATH` made absolute; raises LaunchError before anything starts.

    A model that does not look like a path may be a hub's name (`Qwen/Qwen3-4B`), which the engine understands.
    """
    missing = [name for name in ("PORT", "MODEL_PATH") if not environ.get(name)]
    if missing:
        raise LaunchError(
            f"{' and '.join(missing)} not set", "usage: PORT=30000 MODEL_PATH=/path/to/model bash launch_server.sh"
        )
    port, named = environ["PORT"], environ["MODEL_PATH"]
    if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= HIGHEST_PORT:
        raise LaunchError(f"PORT={port} is not a port", f"set PORT to a whole number from 1 to {HIGHEST_PORT}")
    model = Path(os.path.expanduser(named))  # noqa: PTH111 - leaves a ~ alone where there is no home
    wanted = "set MODEL_PATH to a checkpoint's directory, or to a hub's name such as Qwen/Qwen3-4B"
    if not model.exists():
        if named.startswith(("/", ".", "~")):
            raise LaunchError(f"MODEL_PATH={named} does not exist", wanted)
        return environ
    if not model.is_dir() and model.suffix != ".gguf":
        raise LaunchError(f"MODEL_PATH={named} is a file, not a directory", wanted)
    return {**environ, "MODEL_PATH": str(model.resolve())}  # the working directory changes before the server starts


def main() -> NoReturn:
    """Check the environment, find and compose the bundle, print its hash, become the server."""
    environ = check_environment(dict(os.environ))
    root = Path(__file__).resolve().parents[1]
    device = find_device(environ)
    directory, why = find_bundle(root, device, environ)
    effective = read_effective(directory, WAYS_OUT[why])
    print(f"loop: bundle {effective['bundle']} sha256 {effective['sha256']} on {device}", file=sys.stderr, flush=True)
    argv, env = prepare(effective, directory, why, device, environ)
    if env.pop("LOOP_DIE_WITH_PARENT", "") == "1":
        die_with_parent()
    # `python -m` puts the working directory first on the path: an empty one cannot shadow the engine.
    empty = runtime_dir(env) / "empty"
    empty.mkdir(parents=True, exist_ok=True)
    os.chdir(empty)
    os.execve(sys.executable, [sys.executable, *argv], env)  # noqa: S606 - the point of this file


if __name__ == "__main__":
    # This file's directory must not shadow anything: it is beside the engine's packages on nobody's path.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]
    try:
        main()
    except LaunchError as problem:
        print(f"launch_server.sh: {problem}; {problem.way_out}", file=sys.stderr)
        raise SystemExit(2) from None
