"""Things built once per content hash in the runtime directory. Standard library only: production runs it.

A built directory is written beside its final name and renamed, so a reader never sees half of one
and two launches at once agree on the result. What a server loads from has a manifest, and is held against it before
every use.
"""

import compileall
import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
SAFE = "LOOP_NO_OVERLAY=1 serves the original configuration"


class BuildError(Exception):
    """Something cannot be built or trusted: `what`, with its file, and the way out."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what)
        self.way_out = way_out


def build_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """`target`, filled by `fill(directory)` if it does not exist yet. Safe under two builders at once."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(building)
        building.chmod(0o755)  # whoever serves need not be who built it
        building.rename(target)
    except OSError:
        if not target.exists():  # not lost to another builder: a real failure (disk full, no permission)
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def build_verified(
    target: Path, fill: Callable[[Path], None], stale: Callable[[Path, dict[str, str]], str | None] | None = None
) -> Path:
    """The same with a manifest, held against it before every use; what was changed is built anew, once, beside it.

    `stale(directory, manifest)` may find another reason to build anew. Raises BuildError naming the file.
    """

    def fill_and_list(directory: Path) -> None:
        fill(directory)
        hashes = {name: hash_file(path) for name, path in walk(directory)}
        (directory / MANIFEST).write_text(json.dumps(hashes, sort_keys=True, indent=0))

    found = None
    for place in (target, target.with_name(f"{target.name}-again")):
        try:
            build_once(place, fill_and_list)
        except OSError as problem:
            raise BuildError(
                f"{place} cannot be built: {problem.strerror or problem}",
                f"make room, or set LOOP_RUNTIME_DIR to another disk; {SAFE}",
            ) from None
        found = _find_change(place, stale)
        if found is None:
            return place
        print(f"loop: {found}", file=sys.stderr, flush=True)
    raise BuildError(str(found), f"remove {target} and {target.name}-again beside it; {SAFE}")


def walk(directory: Path) -> Iterator[tuple[str, Path]]:
    """(path relative to it, path) of every file below `directory` but its manifest."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path != directory / MANIFEST:
                yield str(path.relative_to(directory)), path


def hash_file(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _find_change(directory: Path, stale: Callable[[Path, dict[str, str]], str | None] | None) -> str | None:
    """What is not as it was built, or None. Byte code that Python left there since is removed: no hash is known."""
    try:
        manifest: dict[str, str] = json.loads((directory / MANIFEST).read_bytes())
        missing = dict(manifest)
        for name, path in walk(directory):
            claimed = missing.pop(name, None)
            if claimed is None and path.suffix == ".pyc" and path.parent.name == "__pycache__":
                path.unlink(missing_ok=True)
            elif claimed is None:
                return f"{path} was added after it was built"
            elif hash_file(path) != claimed:
                return f"{path} was changed after it was built"
    except (OSError, ValueError) as problem:
        return f"{directory} cannot be read: {problem}"
    if missing:
        return f"{directory / min(missing)} is missing"
    return stale(directory, manifest) if stale else None


def build_plugin(runtime: Path, source: Path, point: dict[str, Any]) -> Path:
    """A directory for PYTHONPATH that offers `source` under an entry point, without installing anything.

    `point` has `group`, `name` and `attribute`. Python finds entry points in any `*.dist-info` on its path.
    """
    content = source.read_bytes()
    digest = hashlib.sha256(content + repr(sorted(point.items())).encode()).hexdigest()[:16]

    def fill(directory: Path) -> None:
        module = f"{point['name']}_plugin"
        (directory / f"{module}.py").write_bytes(content)
        write_entry_points(directory, module, point["group"], {point["name"]: f"{module}:{point['attribute']}"})

    return build_once(runtime / "plugins" / digest, fill)


def write_entry_points(directory: Path, name: str, group: str, points: dict[str, str]) -> None:
    """A `*.dist-info` that declares these entry points, in order."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {value}\n" for point, value in points.items()]
    (info / "entry_points.txt").write_text("".join([f"[{group}]\n", *lines]))


def build_overlay(runtime: Path, replaced: list[dict[str, Any]], read: Callable[[str], bytes]) -> Path:
    """A directory for PYTHONPATH with a full copy of every package that `replaced` touches, its files in place.

    `replaced` is the effective bundle's, `read(sha256)` gives a new file's content. Raises BuildError where an
    installed file is not the one that was measured.
    """
    roots = {name: locate(name) for name in sorted({item["package"] for item in replaced})}
    for item in replaced:
        _check_pre_image(roots[item["package"]], item)
    changed = sorted(f"{item['package']}/{item['path']}:{item['post_sha256']}" for item in replaced)
    identity = [[name, *_identity(name, root)] for name, root in roots.items()]
    key = hashlib.sha256(json.dumps([identity, changed, sys.implementation.cache_tag]).encode()).hexdigest()[:16]
    names = {f"{item['package']}/{item['path']}" for item in replaced}

    def fill(directory: Path) -> None:
        for name, root in roots.items():
            # Python may be writing byte code there: its temporary files come and go.
            shutil.copytree(root, directory / name, ignore=shutil.ignore_patterns("*.pyc.*"), copy_function=_copy)
        for item in replaced:
            _place(directory / item["package"] / item["path"], read(item["post_sha256"]))
        compileall.compile_dir(directory, quiet=2)  # what the package came without; nothing is written there later

    def stale(directory: Path, manifest: dict[str, str]) -> str | None:
        for name, copy in walk(directory):
            package, _, rest = name.partition("/")
            if name not in names and copy.suffix != ".pyc" and _differs(roots[package] / rest, copy, manifest[name]):
                return f"{roots[package] / rest} was changed after {directory} was made from it"
        return None

    return build_verified(runtime / "overlays" / key, fill, stale)


def locate(package: str) -> Path:
    """Where the server will find a package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"the package {package} is not installed for {sys.executable}", f"install it, or {SAFE}")
    return Path(next(iter(spec.submodule_search_locations)))


def _check_pre_image(root: Path, item: dict[str, Any]) -> None:
    path = root / item["path"]
    found = hash_file(path) if path.is_file() else None
    if found != item["pre_sha256"]:
        raise BuildError(
            f"{path} is not the file that was measured: it hashes to {found}, expected is {item['pre_sha256']}",
            f"{SAFE}; measure the bundle anew against what is installed now, or install what was measured",
        )


def _identity(package: str, root: Path) -> list[str]:
    """What tells two installations apart: version and RECORD, or, where that does not list it, all its content."""
    try:
        found = distribution(package)
        record = found.read_text("RECORD") or ""
        if f"{package}/__init__.py," in record:
            return [found.version, hashlib.sha256(record.encode()).hexdigest()]
    except PackageNotFoundError:
        pass  # a package need not be called after its distribution
    files = sorted((name, path) for name, path in walk(root) if "__pycache__" not in path.parts)
    return ["", hashlib.sha256("".join(f"{name}:{hash_file(path)}\n" for name, path in files).encode()).hexdigest()]


def _copy(source: str, target: str) -> None:
    """At the first file that cannot be copied, stop: `copytree` would try all the others."""
    try:
        shutil.copy2(source, target)
    except OSError as problem:
        raise BuildError(
            f"{target} cannot be written: {problem.strerror}",
            f"make room, or set LOOP_RUNTIME_DIR to another disk; {SAFE}",
        ) from None


def _place(path: Path, content: bytes) -> None:
    """Put a new file where there may be an old one, with its byte code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(path.parent.stat().st_mode | 0o700)
    path.unlink(missing_ok=True)
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        old.unlink()
    path.write_bytes(content)
    if path.suffix == ".py":
        try:
            py_compile.compile(str(path), doraise=True)
        except py_compile.PyCompileError as problem:
            raise BuildError(f"{path} does not compile: {problem.exc_value}", SAFE) from None


def _differs(installed: Path, copy: Path, sha256: str) -> bool:
    """Whether an installed file is another one than was copied; times tell apart what need not be read."""
    try:
        now, then = installed.stat(), copy.stat()
    except OSError:
        return True
    same = (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns)
    return not same and hash_file(installed) != sha256
