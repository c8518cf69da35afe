"""The two consoles: what was asked for goes to stdout, everything else to stderr."""

import os
import sys

from rich.console import Console


def open_console(*, stderr: bool) -> Console:
    """Colours where there is a terminal. With NO_COLOR words only, and off a terminal not one escape sequence."""
    if not os.environ.get("NO_COLOR"):
        return Console(stderr=stderr, highlight=False)
    on_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, color_system=None, force_terminal=on_terminal)


out = open_console(stderr=False)
err = open_console(stderr=True)
