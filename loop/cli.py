"""`loop`: every command, and the one place where errors become words and exit codes."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, NoReturn, ParamSpec

import typer

from loop.commands import (
    analyze,
    calibrate,
    compare,
    confirm,
    doctor,
    init,
    judge,
    ledger,
    plan,
    profile,
    promote,
    report,
    run,
    validate,
)
from loop.errors import LoopError

P = ParamSpec("P")
INTERRUPTED = 130

app = typer.Typer(
    name="loop",
    help="One command per idea: A/B/A rounds, correctness gates and atomic promotion for SGLang deployments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
ledger_app = typer.Typer(help="Look at the ledger.", no_args_is_help=True)


def guard(function: Callable[P, None]) -> Callable[P, None]:
    """Errors are for people: what happened, where, the next command; never a traceback unless it is our fault."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except LoopError as problem:
            print(f"loop: {problem}", file=sys.stderr)
            raise typer.Exit(problem.exit_code) from None
        except KeyboardInterrupt:
            print("loop: interrupted; servers are stopped and the ledger is closed", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `loop ledger list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return guarded


for verb in (init, doctor, calibrate, validate, plan, run, judge, confirm, promote, compare, profile, analyze, report):
    app.command(name=verb.__name__.rpartition(".")[2])(guard(verb.main))
ledger_app.command(name="list")(guard(ledger.list_rounds))
ledger_app.command(name="show")(guard(ledger.show))
ledger_app.command(name="verify")(guard(ledger.verify))
app.add_typer(ledger_app, name="ledger")


def _tell_version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if asked:
        from loop import __version__

        print(f"loop {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the `loop` command. A polite end (SIGTERM, a closed terminal) closes ledger and servers as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None  # help and usage errors: typer would leave bold and dim
    app()


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
