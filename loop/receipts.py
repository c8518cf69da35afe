"""Receipts: lines that say what of a bundle ran, and in which process. Standard library only.

The launcher puts this file on the server's path as `loop_receipts`. A plugin calls `fired(name)` inside its hook: the
first call of a process writes a line, every later one costs a look into a set.
"""

import json
import os
import sys

VARIABLE = "LOOP_RECEIPTS"
"""Environment variable that names the file to append to."""
LONGEST = 2000
_written: set[tuple[int, str, str]] = set()


def fired(name: str, status: str = "fired", detail: str = "") -> None:
    """Say once per process that `name` ran."""
    pid = os.getpid()
    if (pid, name, status) in _written:
        return
    _written.add((pid, name, status))
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = {"pid": pid, "role": role(), "name": name, "status": status, "detail": detail[-LONGEST:]}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:  # production may have no place for them, and must serve all the same
        return
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")  # in one piece: several processes append
    except OSError:  # a full disk costs the receipt, never the server
        return
    finally:
        os.close(descriptor)


def role() -> str:
    """What this process is: the function that it was spawned to run, or `main`."""
    process = sys.modules.get("multiprocessing.process")
    current = process.current_process() if process else None
    target = getattr(current, "_target", None)
    return getattr(target, "__name__", None) or "main"
