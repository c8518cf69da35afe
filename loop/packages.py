"""A package as the Python that runs servers has it installed: found without importing it, read, never written."""

import hashlib
import json
import subprocess
from functools import lru_cache
from pathlib import Path

from loop.errors import BundleError, UnfitError
from loop.record import Record

FIND = """
import importlib.util, json, sys
try:
    found = importlib.util.find_spec(sys.argv[1])
except (ImportError, ValueError):
    found = None
places = list(found.submodule_search_locations or []) if found else []
print(json.dumps([found is not None, places]))
"""


class Package(Record):
    """One top-level package."""

    name: str
    directory: Path

    def read(self, path: str) -> bytes | None:
        """The file at `path` below it, or None if there is none."""
        file = self.directory / path
        return file.read_bytes() if file.is_file() else None


def find_package(python: str, name: str) -> Package:
    """The package called `name`; raises BundleError if `python` has none, UnfitError if it cannot be run."""
    _, places = _find(python, name)
    if not places:
        raise BundleError(f"{python} has no package {name!r} to patch")
    return Package(name=name, directory=Path(places[0]))


def is_importable(python: str, name: str) -> bool:
    """Whether `python` has a module or package of this name."""
    return _find(python, name)[0]


def sha256_of_bytes(content: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(content).hexdigest()


@lru_cache(maxsize=256)
def _find(python: str, name: str) -> tuple[bool, tuple[str, ...]]:
    try:
        done = subprocess.run([python, "-c", FIND, name], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        raise UnfitError(
            f"the server's Python {python} cannot be run: {problem}",
            next="set LOOP_PYTHON or [engine] python in loop.toml",
        ) from None
    there, places = json.loads(done.stdout)
    return there, tuple(places)
