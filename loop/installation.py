"""An installation: what the Python that runs servers has, read without importing any of it."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loop.errors import UnfitError
from loop.record import Record

PROGRAM = """
import importlib.metadata as m, importlib.util as u, json, sys
found = {d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"]}
torch = u.find_spec("torch")
print(json.dumps(["%d.%d.%d" % sys.version_info[:3], found, torch and torch.origin]))
"""

FIND = """
import importlib.util as u, json, sys
sys.path = [p for p in sys.path if p]
def place(name):
    try:
        spec = u.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return list(spec.submodule_search_locations)[0] if spec.submodule_search_locations else spec.origin or name
print(json.dumps({name: place(name) for name in sys.argv[1:]}))
"""
"""Where modules are, the working directory apart: servers start in an empty one."""


class Installation(Record):
    """One interpreter's packages."""

    python: str
    """Its version."""
    packages: dict[str, str]
    """Distribution, in lower case with dashes → version."""
    torch_cuda: str | None
    """The CUDA that torch was built for; None without torch, or for one without CUDA."""


def read_installation(python: str) -> Installation:
    """What `python` has; raises UnfitError if it cannot be run."""
    try:
        done = subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _broken(python, str(problem)) from None
    if done.returncode != 0:
        raise _broken(python, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    version, packages, torch = json.loads(done.stdout)
    return Installation(
        python=version,
        packages={name.lower().replace("_", "-"): found for name, found in sorted(packages.items())},
        torch_cuda=_cuda_of(Path(torch)) if torch else None,
    )


def find_modules(python: str, names: Sequence[str]) -> dict[str, str | None]:
    """Top-level module → a package's directory, a module's file, `built-in`, or None where `python` has none.

    Raises UnfitError if it cannot be run.
    """
    try:
        done = subprocess.run([python, "-c", FIND, *names], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _broken(python, str(problem)) from None
    if done.returncode != 0:
        raise _broken(python, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def _cuda_of(torch: Path) -> str | None:
    """From torch's own `version.py`: importing torch would take seconds."""
    try:
        found = re.search(r"^cuda\b[^=]*= '([\d.]+)'", (torch.parent / "version.py").read_text(), re.MULTILINE)
    except OSError:
        return None
    return found.group(1) if found else None


def _broken(python: str, why: str) -> UnfitError:
    return UnfitError(
        f"the server's Python {python} cannot be run: {why}", next="set LOOP_PYTHON or [engine] python in loop.toml"
    )
