"""The Python that runs `loop` is one that it is tested with."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from typing import ClassVar

from packaging.specifiers import SpecifierSet

from loop.checks import Check, Finding, Setup, Stage


class Python(Check):
    """Against the package's own `requires-python`."""

    stage: ClassVar[Stage] = "software"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """The version and where it is."""
        version = platform.python_version()
        try:
            required = metadata("sglang-loop")["Requires-Python"] or ""
        except PackageNotFoundError:  # run from a checkout that is not installed
            required = ""
        if version in SpecifierSet(required):
            yield self.ok(f"{version}, {sys.executable}")
        else:
            yield self.warn(f"{version}; loop is tested with {required}", f"install loop for a Python {required}")
