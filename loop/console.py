"""The two consoles: what was asked for goes to stdout, everything else to stderr."""

import os
import sys

from rich.console import Console


class QuietConsole(Console):
    """Whoever reads may stop reading (`loop report | head`): that is no error."""

    def on_broken_pipe(self) -> None:
        """End without a word, as `cat` does; the rest goes nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0)


def open_console(*, stderr: bool) -> Console:
    """Colours where there is a terminal. With NO_COLOR words only, and off a terminal not one escape sequence."""
    if not os.environ.get("NO_COLOR"):
        return QuietConsole(stderr=stderr, highlight=False)
    on_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return QuietConsole(stderr=stderr, highlight=False, color_system=None, force_terminal=on_terminal)


out = open_console(stderr=False)
err = open_console(stderr=True)
