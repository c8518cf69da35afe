"""An engine: how to start and speak to one serving system. One file per engine; its stem is its name."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from loop.bundles import BUNDLE_FILE, SHIPPED, Effective, Flattened
from loop.errors import BundleError
from loop.flags import Flag, to_argv
from loop.record import Record

DENIED_ENV: Mapping[str, str] = {
    "LOOP_": "the launcher's own variables",
    "HOST": "the launcher's own variable",
    "PORT": "the launcher's own variable",
    "MODEL_PATH": "the launcher's own variable",
    "PYTHONPATH": "would shadow the engine",
    "PYTHONHOME": "would swap the interpreter's library",
    "PYTHONSTARTUP": "would run what is not in the bundle",
    "LD_AUDIT": "would run what is not in the bundle",
    "LD_LIBRARY_PATH": "would shadow the engine's libraries",
    "SGLANG_SIMULATE_ACC": "simulated acceptance is not speed",
    "SGLANG_KERNEL_API_LOGLEVEL": "instrumentation changes what is timed",
    "SGLANG_TORCH_PROFILER_DIR": "instrumentation changes what is timed",
    "CUDA_LAUNCH_BLOCKING": "instrumentation changes what is timed",
    "NSYS_": "instrumentation changes what is timed",
}
"""Environment prefix → why no bundle may set it."""
PRELOADS = ("tcmalloc", "jemalloc", "mimalloc", "iomp5", "gomp")
"""Allocators and OpenMP runtimes: the libraries that LD_PRELOAD may name."""
PRELOAD = re.compile(rf"lib({'|'.join(PRELOADS)})([_-][\w-]+)?\.so(\.\d+)*")


class Denied(Record):
    """An option that no bundle may set, or only to some values."""

    reason: str
    allows: Callable[[Any], bool] | None = None
    """Whether a value is harmless; None denies them all."""


class Engine(Record, ABC):
    """One serving system, installed for the interpreter `python`."""

    python: str

    name: ClassVar[str]
    dialect: ClassVar[str] = "generate"
    """How timed traffic speaks to it."""
    command: ClassVar[tuple[str, ...]]
    """Argv after the interpreter; the launcher fills `{MODEL_PATH}`, `{HOST}` and `{PORT}`."""
    platforms: ClassVar[dict[str, dict[str, Any]]] = {}
    """Device → argv, env and entry point that it needs to run there at all."""
    ready_line: ClassVar[str]
    """What it logs when it serves."""
    health_path: ClassVar[str] = "/health_generate"
    info_path: ClassVar[str] = "/server_info"
    flush_path: ClassVar[str] = "/flush_cache"
    denied: ClassVar[Mapping[str, Denied]] = {}
    """Field an option sets → why it is denied."""
    graphless: ClassVar[tuple[str, ...]] = ()
    """Switches, of which those that the installed version knows make it launch every kernel by itself."""
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Resolved fields that differ between two starts of the same bundle."""
    derived: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Field → other fields that the engine itself changes when it is set."""

    @cached_property
    @abstractmethod
    def version(self) -> str:
        """The installed version; raises UnfitError where the engine is missing."""

    @cached_property
    @abstractmethod
    def flags(self) -> Mapping[str, Flag]:
        """Every option of the installed version by spelling."""

    def effective(self, flattened: Flattened) -> Effective:
        """What the launcher needs for this bundle; raises BundleError on the first option it cannot have."""
        effective = Effective(
            bundle=flattened.bundle_id,
            lineage=flattened.lineage,
            sha256=flattened.sha256,
            content=flattened.content,
            command=self.command,
            argv=tuple(self._argv(flattened)),
            asked={self.flags[f"--{name}"].dest: value for name, value in flattened.content.args.items()},
            platforms=self.platforms,
        )
        return effective.sealed()

    def without_graphs(self, effective: Effective) -> Effective:
        """The same without graphs: kernels inside them do not tell who asked for them. For profiles only."""
        switches = tuple(option for option in self.graphless if option in self.flags and option not in effective.argv)
        return effective.model_copy(update={"argv": (*effective.argv, *switches)}).sealed()

    def _argv(self, flattened: Flattened) -> list[str]:
        content, argv = flattened.content, []
        for name, value in sorted(content.args.items()):
            try:
                argv += to_argv(self.flags, name, value)
                self._refuse_denied(name, value)
            except BundleError as problem:
                raise _refusal(flattened, f"args.{name}", problem.what) from None
        for variable, value in content.env.items():
            reason = _why_denied(variable, value)
            if reason:
                raise _refusal(flattened, f"env.{variable}", f"environment {variable} is denied: {reason}")
        return argv

    def _refuse_denied(self, name: str, value: Any) -> None:
        denied = self.denied.get(self.flags[f"--{name}"].dest)
        if denied is not None and not (denied.allows and denied.allows(value)):
            raise BundleError(f"--{name} = {value!r} is denied in a bundle: {denied.reason}")

    def resolved(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in a `/server_info` answer that a bundle could have changed."""
        fields = {flag.dest for flag in self.flags.values()} - self.volatile
        return {name: info[name] for name in sorted(fields) if name in info}

    def accept_length(self, info: Mapping[str, Any]) -> float | None:
        """Tokens per step of speculative decoding in a `/server_info` answer: the highest of its schedulers."""
        states = info.get("internal_states") or ()
        lengths = [state.get("avg_spec_accept_length") for state in states if isinstance(state, Mapping)]
        return max((float(length) for length in lengths if isinstance(length, int | float)), default=None)


def _why_denied(variable: str, value: str) -> str | None:
    """Why no bundle may set this variable to this value, or None where it may."""
    if variable == "LD_PRELOAD":
        others = [path for path in re.findall(r"[^\s:]+", value) if not PRELOAD.fullmatch(path.rpartition("/")[2])]
        known = ", ".join(PRELOADS)
        return f"{others[0]!r} can change what is measured; only {known} may be preloaded" if others else None
    return next((reason for prefix, reason in DENIED_ENV.items() if variable.startswith(prefix)), None)


def _refusal(flattened: Flattened, setting: str, what: str) -> BundleError:
    """`what` is wrong with a setting, said of the bundle in the lineage that sets it."""
    owner = flattened.origins.get(setting, flattened.bundle_id)
    if owner != SHIPPED:
        return BundleError(f"{owner}: {what}", next=f"mend candidates/{owner}/{BUNDLE_FILE}")
    return BundleError(
        f"{flattened.bundle_id}: its parent, what is shipped, no longer fits: {what}",
        next="`loop promote --rollback`, or start from another parent",
    )
