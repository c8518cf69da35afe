"""Loaded by every server process of a bundle with code: runs its plugins, and writes down what really ran.

The launcher copies this file beside the bundle's own modules as `loop_witness`. Standard library only. Nothing here
costs anything once a process has started: modules are noticed when they are imported, and a receipt is written once.
"""

import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

CODE_FILE = "loop_code.json"
"""Beside this file: what the bundle replaces, and its plugins."""
RECEIPTS = "LOOP_RECEIPTS"
"""The file that receipts go to, one JSON object a line."""
_written: set[str] = set()


def fired(name: str) -> None:
    """Say that something ran: once per process, whatever it costs to be called again is a look into a set."""
    if name not in _written:
        _written.add(name)
        note(name, "ran")


def note(name: str, status: str, detail: str = "") -> None:
    """Append a receipt. One write of one line: processes do not mix theirs."""
    path = os.environ.get(RECEIPTS)
    if not path:
        return
    process = multiprocessing.current_process().name
    receipt = {"pid": os.getpid(), "process": process, "name": name, "status": status, "detail": detail[-1000:]}
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, json.dumps(receipt).encode() + b"\n")
        finally:
            os.close(file)
    except OSError as problem:  # a full disk must not end a server; the missing receipt is noticed
        print(f"loop: no receipt for {name}: {problem}", file=sys.stderr)


def activate() -> None:
    """The entry point: notice the replaced modules from now on, then run the bundle's plugins in their order."""
    if any(isinstance(finder, _Noticing) for finder in sys.meta_path):
        return  # a process that is asked twice does it once
    code = json.loads(Path(__file__).with_name(CODE_FILE).read_text(encoding="utf-8"))
    waiting = {module_of(item): item for item in code["replaced"] if item["path"].endswith(".py")}
    for name, item in waiting.items():
        if name in sys.modules:
            _note_origin(item, getattr(sys.modules[name], "__file__", None))
    sys.meta_path.insert(0, _Noticing({name: item for name, item in waiting.items() if name not in sys.modules}))
    for plugin in code["plugins"]:
        try:
            getattr(importlib.import_module(plugin["module"]), plugin["entry"])()
        except BaseException:
            note(f"plugin:{plugin['module']}", "failed", traceback.format_exc())
            raise
        note(f"plugin:{plugin['module']}", "ran")


def module_of(item: dict[str, Any]) -> str:
    """The dotted name of a replaced `.py` file."""
    parts = [item["package"], *Path(item["path"]).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Noticing(importlib.abc.MetaPathFinder):
    """Finds nothing itself; says from where a replaced module is about to be loaded."""

    def __init__(self, waiting: dict[str, dict[str, Any]]) -> None:
        self._waiting = waiting

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Asked for every import that is not cached."""
        item = self._waiting.pop(fullname, None)
        if item is not None:
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            _note_origin(item, spec.origin if spec else None)


def _note_origin(item: dict[str, Any], origin: str | None) -> None:
    """Whether a replaced module comes from the file that replaces it."""
    name = f"file:{item['package']}/{item['path']}"
    try:
        found = hashlib.sha256(Path(origin or "").read_bytes()).hexdigest()
    except OSError as problem:
        note(name, "failed", f"{origin}: {problem}")
        return
    note(name, "ran" if found == item["post_sha256"] else "failed", f"loaded from {origin}")
