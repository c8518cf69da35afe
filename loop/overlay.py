"""Things built once per content hash in the runtime directory. Standard library only: production runs it.

A built directory is written beside its final name and renamed, so a reader never sees half of one
and two launches at once agree on the result.
"""

import compileall
import hashlib
import importlib.machinery
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MANIFEST = "overlay.json"
IMPORTABLE = (".py", ".pyc", ".so", ".pth")
SAFE = "LOOP_NO_OVERLAY=1 serves the original"


class OverlayError(Exception):
    """Code cannot be put over what is installed: `what` is wrong, and the way out."""

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
        building.chmod(0o755)
        building.rename(target)
    except OSError:
        if not target.exists():  # not lost to another builder: a real failure (disk full, no permission)
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def build_plugin(runtime: Path, source: Path, point: dict[str, Any]) -> Path:
    """A directory for PYTHONPATH that offers `source` under an entry point, without installing anything.

    `point` has `group`, `name` and `attribute`. Python finds entry points in any `*.dist-info` on its path.
    """
    module = f"{point['name']}_plugin"
    return _offer({f"{module}.py": source.read_bytes()}, module, point, runtime / "plugins")


def build_code(runtime: Path, bundle: Path, effective: dict[str, Any], witness: Path) -> list[Path]:
    """Directories for the front of PYTHONPATH, with all the code of an effective bundle, proven to be what it names.

    `bundle` holds its `files`; `witness` runs its plugins and notices what is imported. Raises OverlayError.
    """
    content = effective["content"]
    replaced, plugins = content.get("replaced", []), content.get("plugins", [])
    code = {"replaced": replaced, "plugins": plugins}
    modules = {f"{item['module']}.py": _read(bundle, item["sha256"]) for item in plugins}
    modules |= {"loop_witness.py": witness.read_bytes(), "loop_code.json": json.dumps(code).encode()}
    point = {"group": effective["plugin_group"], "name": "loop_code", "attribute": "activate"}
    try:
        overlays = [build_overlay(runtime, bundle, replaced)] if replaced else []
        return [_offer(modules, "loop_witness", point, runtime / "plugins"), *overlays]
    except OSError as problem:
        where = f"{runtime}: {problem}"
        raise OverlayError(
            f"the bundle's code cannot be built in {where}", "make room, or set LOOP_RUNTIME_DIR"
        ) from None


def build_overlay(runtime: Path, bundle: Path, replaced: list[dict[str, Any]]) -> Path:
    """A copy of every package that the bundle changes, with its files in place, compiled; proven before every use.

    Its name is of what is installed and of what is replaced, so another installation gets another copy. A copy and not
    links: programs resolve links, and find the rest of their package beside what is installed.
    """
    origins = {name: find_package(name) for name in sorted({item["package"] for item in replaced})}
    seen = {name: [str(origin), _look_of(origin)] for name, origin in origins.items()}
    key = hashlib.sha256(json.dumps([seen, replaced], sort_keys=True).encode()).hexdigest()[:32]

    def fill(directory: Path) -> None:
        for name, origin in origins.items():
            shutil.copytree(origin, directory / name)
        for item in replaced:
            _replace(directory / item["package"] / item["path"], item, _read(bundle, item["post_sha256"]))
        for name in origins:
            compileall.compile_dir(directory / name, quiet=2, force=False)
        files = {str(path.relative_to(directory)): _hash(path) for path in _files_of(directory)}
        (directory / MANIFEST).write_text(json.dumps({"schema": "loop.overlay/1", "files": files}))

    target = build_once(runtime / "overlays" / key, fill)
    _prove(target)
    return target


def find_package(name: str) -> Path:
    """Where a package is installed, without importing it: this file's own directory does not count."""
    own = str(Path(__file__).resolve().parent)
    paths = [path for path in sys.path if not path or str(Path(path).resolve()) != own]
    spec = importlib.machinery.PathFinder.find_spec(name, paths)
    if spec is None or not spec.submodule_search_locations:
        raise OverlayError(f"{sys.executable} has no package {name!r}, which the bundle changes", SAFE)
    return Path(next(iter(spec.submodule_search_locations)))


def _replace(path: Path, item: dict[str, Any], content: bytes) -> None:
    """One file of the copy; what is there must be what the change was made for."""
    found = _hash(path) if path.exists() else None
    if found != item["pre_sha256"]:
        raise OverlayError(
            f"{item['package']}/{item['path']} as installed hashes to {found or 'nothing: it does not exist'}; the "
            f"bundle was made for {item['pre_sha256'] or 'a package without it'}",
            f"install the version it was measured with, or measure it anew; {SAFE}",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # also where the installed one may not be written
    path.write_bytes(content)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _prove(overlay: Path) -> None:
    """Raise OverlayError unless every file is what was built, and nothing that could be imported was added."""
    way_out = f"remove {overlay}: the next start builds it again"
    try:
        files = json.loads((overlay / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as problem:
        raise OverlayError(f"{overlay / MANIFEST} cannot be read: {problem}", way_out) from None
    found = {str(path.relative_to(overlay)) for path in _files_of(overlay)}
    for name, sha256 in files.items():
        if name not in found or _hash(overlay / name) != sha256:
            raise OverlayError(f"{overlay / name} was changed or removed after it was built", way_out)
    added = sorted(name for name in found - set(files) if name.endswith(IMPORTABLE))
    if added:
        raise OverlayError(f"{overlay / added[0]} was added after the overlay was built", way_out)


def _offer(modules: dict[str, bytes], module: str, point: dict[str, Any], parent: Path) -> Path:
    """A directory with these files and one entry point into `module`, under a name of its content."""
    info = f"{module}-1.0.dist-info"
    entry = f"[{point['group']}]\n{point['name']} = {module}:{point['attribute']}\n"
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n".encode(),
        f"{info}/entry_points.txt": entry.encode(),
    }
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]

    def fill(directory: Path) -> None:
        (directory / info).mkdir()
        for name, content in files.items():
            (directory / name).write_bytes(content)

    target = build_once(parent / digest, fill)
    for name, content in files.items():
        if not (target / name).is_file() or (target / name).read_bytes() != content:
            raise OverlayError(f"{target / name} was changed", f"remove {target}: the next start builds it again")
    return target


def _read(bundle: Path, sha256: str) -> bytes:
    """A file of the bundle, proven to be what its name says."""
    path = bundle / "files" / sha256
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise OverlayError(f"{path} cannot be read: {problem}", f"restore it from git; {SAFE}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OverlayError(f"{path} was edited: it does not hash to its name", f"restore it from git; {SAFE}")
    return content


def _look_of(directory: Path) -> str:
    """What a package looks like without reading it: names, sizes and times of its files, compiled ones apart."""
    look = hashlib.sha256()
    for path in _files_of(directory):
        if path.suffix != ".pyc":
            seen = path.stat()
            look.update(f"{path.relative_to(directory)} {seen.st_size} {seen.st_mtime_ns}\n".encode())
    return look.hexdigest()


def _files_of(directory: Path) -> Iterator[Path]:
    """Every file below, in one order everywhere; the manifest itself apart."""
    for place, below, names in os.walk(directory):
        below.sort()
        yield from (Path(place, name) for name in sorted(names) if name != MANIFEST)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
