"""The launcher runs up to the point where it would start a server."""

import os
import subprocess
from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage

WITHOUT = ("PORT", "MODEL_PATH")
REFUSED = 2


class Launcher(Check):
    """Started without a port and a model, it must refuse in its own words: bash, Python and launch.py all work then."""

    stage: ClassVar[Stage] = "workspace"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """Starts no server."""
        launcher = setup.workspace.launcher
        environ = {name: value for name, value in os.environ.items() if name not in WITHOUT}
        command = ["bash", str(launcher)]
        try:
            done = subprocess.run(
                command,
                env={**environ, "LOOP_PYTHON": setup.engine.python},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            yield self.unfit(f"{' '.join(command)}: {problem}", "install bash")
            return
        lines = done.stderr.strip().splitlines() or ["nothing"]
        said = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
        if done.returncode == REFUSED and "MODEL_PATH" in said:
            yield self.ok(f"{launcher.name} runs with bash and {setup.engine.python}")
        else:
            yield self.unfit(
                f"{launcher} ended with exit code {done.returncode}: {said}",
                "restore it from git, or `loop init` where it is missing",
            )
