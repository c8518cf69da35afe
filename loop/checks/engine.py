"""The engine is installed for the Python that runs servers, with torch and the kernels it needs."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage

KERNELS = ("sglang-kernel", "sgl-kernel", "flashinfer-python", "triton", "flash-attn", "flash-attn-4", "deep-gemm")
"""Packages with kernels: another version of one of them is another engine."""


class EngineCheck(Check):
    """Names every version that decides how fast the same flags are."""

    stage: ClassVar[Stage] = "software"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Versions only: importing them takes half a minute."""
        engine, packages = setup.engine, setup.installation.packages
        version = engine.version  # raises where the engine is missing
        if engine.name == "fake":
            yield self.ok(f"fake {version}, part of loop")
            return
        needed = ("torch", *KERNELS)
        shown = ", ".join(f"{name} {packages[name]}" for name in needed if name in packages)
        if "torch" in packages:
            yield self.ok(f"{engine.name} {version} with {shown}, Python {setup.installation.python}")
        else:
            yield self.unfit(f"{engine.python} has {engine.name} {version} but no torch", f"reinstall {engine.name}")
