"""The witness: in every process of a server it proves which replaced files run, and loads the bundle's plugins.

The launcher puts this file on the server's path as `loop_witness`, beside a `loop_bundle.json`, and declares its
functions as entry points of the engine's plugin group: first `watch`, then one for each plugin. Standard library only.
"""

import functools
import hashlib
import importlib
import importlib.machinery
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BUNDLE = "loop_bundle.json"
PLUGIN = "load_"
_pending: dict[str, dict[str, str]] = {}


class Watch:
    """A finder that finds nothing: it sees which file a replaced module is about to be loaded from."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG004 - the import system's
        """Called for every module that is not loaded yet."""
        if name in _pending:
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            _testify(name, spec.origin if spec else None)


def watch() -> None:
    """Entry point: testify for what is loaded already, and see what is loaded later."""
    _fired("witness", "watching")
    _pending.update(_bundle()["modules"])
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        # `python -m` and multiprocessing load a module under a name that is not its own.
        own = spec.name if name in ("__main__", "__mp_main__") and spec else name
        if own in _pending:
            _testify(own, getattr(module, "__file__", None))
    if _pending:
        sys.meta_path.insert(0, Watch)


def __getattr__(name: str) -> Callable[[], Any]:
    """`load_<module>`: the entry point of a plugin."""
    if not name.startswith(PLUGIN):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functools.partial(_load, name.removeprefix(PLUGIN))


def _load(module: str) -> Any:
    """Load a plugin and call its entry; a failure is written down and raised again."""
    plugin = _bundle()["plugins"][module]
    if plugin["needs"] and plugin["needs"] not in os.environ:
        _fired(plugin["receipt"], "fallback", f"{plugin['needs']} is not set: it was not built")
        return None
    try:
        result = getattr(importlib.import_module(module), plugin["entry"])()
    except BaseException:
        _fired(plugin["receipt"], "failed", traceback.format_exc())
        raise
    _fired(plugin["receipt"], "activated")
    return result


def _testify(name: str, origin: str | None) -> None:
    expected = _pending.pop(name)
    if origin is None or os.path.realpath(origin) != os.path.realpath(expected["file"]):
        _fired(expected["receipt"], "elsewhere", f"loaded from {origin}")
        return
    found = hashlib.sha256(Path(origin).read_bytes()).hexdigest()
    _fired(expected["receipt"], "loaded" if found == expected["sha256"] else "changed", origin)


def _fired(name: str, status: str, detail: str = "") -> None:
    import loop_receipts  # type: ignore[import-not-found]  # beside this file on the server's path

    loop_receipts.fired(name, status, detail)


@functools.cache
def _bundle() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(__file__).with_name(BUNDLE).read_text(encoding="utf-8"))
    return document
