"""The launcher as production runs it, of bundles whose server tells how it was started instead of serving."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from loop.effective import Effective
from tests.brackets import effective

TELL = """import json, os, sys, importlib.metadata as m
found = [p.name for p in m.entry_points(group="loop.test.platforms")]
told = {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd(), "found": found}
print(json.dumps(told))
"""
COMMAND = ("-c", TELL, "{MODEL_PATH}", "{HOST}", "{PORT}")


def teller(bundle: str, args: dict[str, Any] | None = None, **fields: Any) -> Effective:
    """A bundle whose server prints its argv, environment and process id as JSON, and ends."""
    argv = tuple(part for name, value in (args or {}).items() for part in (f"--{name}", str(value)))
    return effective(bundle, args=args, command=COMMAND, argv=argv, **fields)


def model_of(root: Path) -> str:
    """A directory beside the workspace that passes for a checkpoint."""
    model = root.parent / "model"
    model.mkdir(exist_ok=True)
    return str(model)


def launch(root: Path, *, check: bool = True, cwd: Path | None = None, **variables: str | None) -> Any:
    """Run the launcher to its end, with these variables and without the caller's own."""
    given = {
        "PORT": "30000",
        "MODEL_PATH": model_of(root),
        "LOOP_PYTHON": sys.executable,
        "LOOP_DEVICE": "cpu",
        "LOOP_RUNTIME_DIR": str(root.parent / "runtime"),
        **variables,
    }
    dropped = {"HOST", "LOOP_BUNDLE", "LOOP_NO_OVERLAY", "LOOP_SESSION", "PYTHONPATH", *given}
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {name: value for name, value in given.items() if value is not None}
    done = subprocess.run(
        ["bash", str(root / "launch_server.sh")],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return done


def ship(root: Path, **bundles: Effective) -> None:
    """Make `shipped.json` name these bundles, by device (`_` stands for a space)."""
    devices = {}
    for device, shipped in bundles.items():
        directory = Path("candidates") / "shipped" / shipped.sha256[:16]
        shipped.write(root / directory)
        devices[device.replace("_", " ")] = {"bundle": shipped.bundle, "directory": str(directory)}
    pointer = {"schema": "loop.shipped/1", "devices": devices}
    (root / "candidates" / "shipped.json").write_text(json.dumps(pointer))


def message(root: Path, **variables: Any) -> str:
    """What the launcher says when it refuses, with exit code 2 and without a traceback."""
    done = launch(root, check=False, **variables)
    assert 2 == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    assert "" == done.stdout
    return str(done.stderr)
