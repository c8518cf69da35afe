"""Things built once per content hash in the runtime directory. Standard library only: production runs it.

A built directory is written beside its final name and renamed, so a reader never sees half of one
and two launches at once agree on the result.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def build_once(target: Path, fill: Callable[[Path], None]) -> Path:
    """`target`, filled by `fill(directory)` if it does not exist yet. Safe under two builders at once."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(building)
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
    content = source.read_bytes()
    digest = hashlib.sha256(content + repr(sorted(point.items())).encode()).hexdigest()[:16]

    def fill(directory: Path) -> None:
        module = f"{point['name']}_plugin"
        (directory / f"{module}.py").write_bytes(content)
        info = directory / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        line = f"{point['name']} = {module}:{point['attribute']}"
        (info / "entry_points.txt").write_text(f"[{point['group']}]\n{line}\n")

    return build_once(runtime / "plugins" / digest, fill)
