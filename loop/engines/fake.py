"""The fake engine: known delays, known answers and injectable faults, for tests, docs and rehearsals."""

import argparse
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from loop import __version__
from loop.engines import Denied, Engine
from loop.fake_server.flags import build_parser
from loop.flags import Flag

_LAUNCHER = Denied(reason="it is the launcher's")


class Fake(Engine):
    """`python -m loop.fake_server`, which needs nothing but this package."""

    name: ClassVar[str] = "fake"
    command: ClassVar[tuple[str, ...]] = (
        "-m", "loop.fake_server",
        "--model-path", "{MODEL_PATH}", "--host", "{HOST}", "--port", "{PORT}",
    )  # fmt: skip
    platforms: ClassVar[dict[str, dict[str, Any]]] = {
        # It speaks no TLS; reading the certificate store costs every start 140 ms of CPU.
        "*": {"env": {"SSL_CERT_FILE": "/dev/null"}},
    }
    plugin_group: ClassVar[str] = "loop.fake.plugins"
    name_argv: ClassVar[tuple[str, ...]] = ("--served-model-name", "{MODEL_NAME}")
    ready_line: ClassVar[str] = "The server is fired up and ready to roll!"
    denied: ClassVar[Mapping[str, Denied]] = {
        "host": _LAUNCHER,
        "port": _LAUNCHER,
        "model_path": Denied(reason="another model is not a faster server"),
        "served_model_name": Denied(reason="it would hide which model answers"),
    }
    volatile: ClassVar[frozenset[str]] = frozenset({"host", "port", "seed"})

    @cached_property
    def version(self) -> str:
        """The package's own."""
        return __version__

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
        """From the fake server's argparse parser."""
        found = {}
        for action in build_parser()._actions:  # noqa: SLF001 - argparse has no public list
            for option in action.option_strings:
                if option.startswith("--") and option != "--help":
                    choices = tuple(map(str, action.choices)) if action.choices else None
                    found[option] = Flag(option=option, dest=action.dest, kind=_kind(action), choices=choices)
        return found


def _kind(action: argparse.Action) -> str:
    if action.nargs == 0:
        return "switch"
    if type(action).__name__ == "_AppendAction":
        return "repeat"
    return {"int": "int", "_whole": "int", "_positive": "int"}.get(getattr(action.type, "__qualname__", ""), "str")
