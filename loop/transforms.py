"""Model transforms: another checkpoint, made by a bundle's script from the one that is served. Standard library only.

The script runs apart: its own process, no environment of ours, an empty directory, limits of time and memory. The
checkpoint it reads must be the same afterwards; what it writes must be the same model by all that defines its shape.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .overlay import SAFE, BuildError, build_once

SHAPES = (
    "architectures",
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_experts_per_tok",
    "tie_word_embeddings",
)
"""Keys of `config.json`, also in its `text_config`, that a transform must keep."""
KEPT = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")
"""Files that a transform must keep: another tokenizer changes the work."""
WHOLE_BYTES = 64 << 20
EDGE_BYTES = 1 << 20
PROGRAM = """
import pathlib, resource, runpy, sys
script, entry, source, target, memory = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_DATA, (int(memory),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
runpy.run_path(script)[entry](pathlib.Path(source), pathlib.Path(target))
"""


def transform_model(
    transforms: list[dict[str, Any]], model: Path, read: Callable[[str], bytes], runtime: Path
) -> tuple[Path, list[tuple[str, str]]]:
    """(the checkpoint to serve, (script's sha256, its output's hash) of each transform), built once per input.

    Raises BuildError where a script fails, touches its input, or makes another model.
    """
    applied = []
    for transform in transforms:
        model = _transform(transform, model, read(transform["sha256"]), runtime)
        applied.append((transform["sha256"], _read_hash(model)))
    return model, applied


def hash_checkpoint(directory: Path) -> str:
    """Small files whole, large ones by size and both ends: reading terabytes at each start would prove little more."""
    digest = hashlib.sha256()
    for name, path in sorted(_files(directory)):
        size = path.stat().st_size
        digest.update(f"{name}:{size}\n".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(EDGE_BYTES))
                file.seek(-EDGE_BYTES, os.SEEK_END)
                digest.update(file.read())
    return digest.hexdigest()


def _transform(transform: dict[str, Any], source: Path, script: bytes, runtime: Path) -> Path:
    if not source.is_dir():
        raise BuildError(f"MODEL_PATH={source} is not a directory, and the bundle transforms the checkpoint", SAFE)
    before = hash_checkpoint(source)
    key = hashlib.sha256(f"{before}:{json.dumps(transform, sort_keys=True)}".encode()).hexdigest()[:16]
    times = {name: path.stat().st_mtime_ns for name, path in _files(source)}

    log = runtime / "models" / f"{key}.log"

    def fill(directory: Path) -> None:
        target = directory / "checkpoint"
        target.mkdir()
        _run(transform, script, source, target, log)
        now = {name: path.stat().st_mtime_ns for name, path in _files(source)}
        touched = sorted(name for name in {*times, *now} if times.get(name) != now.get(name))
        if touched or hash_checkpoint(source) != before:
            raise BuildError(f"the transform changed its input, {source / ''.join(touched[:1])}", f"restore it; {SAFE}")
        _check_shape(source, target)
        (directory / "sha256").write_text(hash_checkpoint(target))

    try:
        built = build_once(runtime / "models" / key, fill)
    except OSError as problem:
        raise BuildError(f"{runtime / 'models' / key} cannot be built: {problem.strerror or problem}", SAFE) from None
    found = hash_checkpoint(built / "checkpoint")
    if found != _read_hash(built / "checkpoint"):
        raise BuildError(f"{built / 'checkpoint'} was changed after it was built", f"remove {built}; {SAFE}")
    return built / "checkpoint"


def _run(transform: dict[str, Any], script: bytes, source: Path, target: Path, log: Path) -> None:
    """Run the script to its end, its output in `log`, which outlives a failure."""
    with tempfile.TemporaryDirectory(prefix="loop-transform-") as empty, log.open("wb") as said:
        file = target.parent / "transform.py"
        file.write_bytes(script)
        memory = str(int(transform["memory_gb"] * 1e9))
        argv = [sys.executable, "-I", "-c", PROGRAM, *map(str, (file, transform["entry"], source, target, memory))]
        environ = {"PATH": os.defpath, "HOME": empty, "TMPDIR": empty, "LANG": "C.UTF-8"}
        with subprocess.Popen(
            argv,
            cwd=empty,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                process.wait(timeout=transform["timeout_s"])
                how = f"ended with exit code {process.returncode}" if process.returncode else ""
            except subprocess.TimeoutExpired:
                how = f"took more than {transform['timeout_s']:g} s"
            finally:
                _end_group(process.pid)
    if how:
        last = (log.read_text(errors="replace").splitlines() or ["it said nothing"])[-1]
        raise BuildError(f"the model transform {transform['sha256'][:16]} {how}: {last}; its log is {log}", SAFE)


def _end_group(group: int) -> None:
    """Also what the script started and left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _check_shape(source: Path, target: Path) -> None:
    old, new = (_read_config(directory) for directory in (source, target))
    pairs = [("", old, new), ("text_config.", old.get("text_config") or {}, new.get("text_config") or {})]
    for prefix, before, after in pairs:
        for name in SHAPES:
            if before.get(name) != after.get(name):
                raise BuildError(
                    f"the transform makes another model: {prefix}{name} was {before.get(name)!r} in config.json, "
                    f"it is {after.get(name)!r}",
                    SAFE,
                )
    for name in KEPT:
        if (source / name).is_file() and (
            not (target / name).is_file() or (source / name).read_bytes() != (target / name).read_bytes()
        ):
            raise BuildError(f"the transform changes {name}: another tokenizer changes the work", SAFE)


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        document = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as problem:
        raise BuildError(f"the checkpoint {directory} has no readable config.json: {problem}", SAFE) from None
    return document if isinstance(document, dict) else {}


def _read_hash(checkpoint: Path) -> str:
    try:
        return (checkpoint.parent / "sha256").read_text()
    except OSError as problem:
        raise BuildError(f"{checkpoint.parent} is incomplete: {problem}", f"remove it; {SAFE}") from None


def _files(directory: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of the checkpoint's files, hidden ones apart."""
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_file() and not any(part.startswith(".") for part in Path(name).parts):
            yield name, path
