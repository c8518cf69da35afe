"""The exceptions of `loop`.

- LoopError                 something a person must act on; carries the command's exit code
  - InputError              bad usage, bundle, suite or workspace; found before anything starts (exit 2)
    - BundleError           a bundle that cannot be evaluated
    - SuiteError            a suite that cannot be sent
  - HardStop                the loop must not go on (exit 3)
  - UnfitError              the machine or the ledger is unfit (exit 5)
    - ServerError           a server did not start, died, or did not stop

A rejected candidate is a result, not an error: gates and verdicts never raise.
"""

from typing import ClassVar


class LoopError(Exception):
    """`what` happened, to which file or server, and the `next` command or action.

    Catch this one at the command line only; everything below it is specific.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, next: str = "") -> None:  # noqa: A002 - reads as the sentence it prints
        super().__init__(what)
        self.what = what
        self.next = next

    def __str__(self) -> str:
        return f"{self.what}\n  next: {self.next}" if self.next else self.what


class InputError(LoopError):
    """Refused before anything starts."""

    exit_code = 2


class BundleError(InputError):
    """A bundle that cannot be evaluated: schema, flags, denied keys, target."""


class SuiteError(InputError):
    """A suite that cannot be sent: schema, prompts, hashes."""


class HardStop(LoopError):
    """The loop must not go on: a broken chain, a STOP file, an exhausted budget."""

    exit_code = 3


class UnfitError(LoopError):
    """The machine, the ledger or a server cannot give a trustworthy measurement."""

    exit_code = 5


class ServerError(UnfitError):
    """A server that did not start, died under load, or did not stop.

    `stage` is where in its life (`start`, `traffic`, `stop`); `log_tail` the last lines it printed.
    """

    def __init__(self, what: str, *, stage: str, log_tail: str = "", next: str = "") -> None:  # noqa: A002
        super().__init__(what, next=next)
        self.stage = stage
        self.log_tail = log_tail
