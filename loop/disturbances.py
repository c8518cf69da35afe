"""Disturbances: caveats about the machine, from the conditions that were recorded around each session."""

from collections.abc import Callable, Iterator, Sequence

from loop.caveats import Caveat
from loop.conditions import MEMORY_GRACE_S, MEMORY_SLACK_BYTES, Conditions, GpuConditions
from loop.gpus import HARMLESS
from loop.processes import CpuShare
from loop.session import Session
from loop.wording import count

MAX_OTHER_CORES = 0.3
"""What others may use of the CPUs, on average."""
MIN_OBSERVED_S = 1.0
"""The kernel counts processor time in hundredths of a second: over less than this, an average is noise."""
MAX_CLOCK_PCT = 1.0
"""Clocks that differ by more are an effect of their own."""
GIB = 1 << 30


def find_disturbances(sessions: Sequence[Session]) -> tuple[Caveat, ...]:
    """Every one of a round's sessions, in a fixed order; none where no conditions were recorded."""
    seen = {session.label: session.conditions for session in sessions if session.conditions}
    finders = (_other_load, _stolen, _gpu_shared, _throttled, _clocks, _memory_left, _compiled)
    return tuple(caveat for find in finders for caveat in find(seen))


Seen = dict[str, Conditions]
"""Session label → its conditions."""


def _other_load(seen: Seen) -> Iterator[Caveat]:
    loud = _beyond(seen, lambda cpu: cpu.other_cores)
    if not loud:
        return
    processes = [process for label in loud for process in _cpu(seen[label]).busiest]
    named = max(processes, key=lambda process: process.cores, default=None)
    biggest = f"{named.name} (pid {named.pid}) with {named.cores:.1f}" if named else "none that can be seen from here"
    yield Caveat(
        code="other_load",
        text=f"other processes used the CPUs while traffic was timed: {_list(loud)} cores; the biggest is {biggest}",
        advice="end it, or give it other CPUs with `taskset`, and measure again; `loop doctor` lists who is busy",
    )


def _stolen(seen: Seen) -> Iterator[Caveat]:
    loud = _beyond(seen, lambda cpu: cpu.stolen_cores)
    if loud:
        yield Caveat(
            code="cpu_stolen",
            text=f"the hypervisor gave CPUs to other machines while traffic was timed: {_list(loud)} cores",
            advice="measure on a machine whose CPUs are not shared",
        )


def _gpu_shared(seen: Seen) -> Iterator[Caveat]:
    found: dict[tuple[int, str], list[str]] = {}
    for label, gpu in _gpus(seen):
        for process in gpu.others:
            held = f", {process.memory_bytes / GIB:.1f} GiB" if process.memory_bytes is not None else ""
            who = f"{process.name or 'a process of another container'} (pid {process.pid}{held})"
            found.setdefault((gpu.index, who), []).append(label)
    for (index, who), labels in found.items():
        yield Caveat(
            code="gpu_shared",
            text=f"GPU {index} also ran {who} in {', '.join(labels)}",
            advice="end it, or choose a free GPU with CUDA_VISIBLE_DEVICES, and measure again",
        )


def _throttled(seen: Seen) -> Iterator[Caveat]:
    found: dict[tuple[int, str], list[str]] = {}
    for label, gpu in _gpus(seen):
        for reason, share_pct in gpu.limited_pct.items():
            if reason not in HARMLESS:
                found.setdefault((gpu.index, reason), []).append(f"{share_pct:.0f} % of {label}")
    for (index, reason), shares in found.items():
        yield Caveat(
            code="throttled",
            text=f"{reason} held the clocks of GPU {index} down in {', '.join(shares)}",
            advice="lock clocks that it can keep (`nvidia-smi --lock-gpu-clocks`), or let it cool between sessions",
        )


def _clocks(seen: Seen) -> Iterator[Caveat]:
    clocks: dict[int, dict[str, float]] = {}
    for label, gpu in _gpus(seen):
        if gpu.sm_clock_mhz is not None:
            clocks.setdefault(gpu.index, {})[label] = gpu.sm_clock_mhz.median
    for index, medians in clocks.items():
        apart_pct = 100 * (max(medians.values()) / min(medians.values()) - 1)
        if apart_pct > MAX_CLOCK_PCT:
            listed = ", ".join(f"{label} {clock:.0f}" for label, clock in medians.items())
            yield Caveat(
                code="clocks_differ",
                text=f"the median SM clock of GPU {index} differs by {apart_pct:.1f} %: {listed} MHz",
                advice="lock the clocks with `nvidia-smi --lock-gpu-clocks` and measure again",
            )


def _memory_left(seen: Seen) -> Iterator[Caveat]:
    found: dict[int, list[str]] = {}
    for label, gpu in _gpus(seen):
        if gpu.memory_before_bytes is None or gpu.memory_after_bytes is None:
            continue
        left = gpu.memory_after_bytes - gpu.memory_before_bytes
        if left > MEMORY_SLACK_BYTES:
            found.setdefault(gpu.index, []).append(f"{left / GIB:.1f} GiB by {label}")
    for index, lefts in found.items():
        late = f"{MEMORY_GRACE_S:.0f} s after the server's end"
        yield Caveat(
            code="gpu_memory_left",
            text=f"memory of GPU {index} was still held {late}: {', '.join(lefts)}",
            advice="`nvidia-smi` names who holds it: the next server has less, and a KV cache of another size",
        )


def _compiled(seen: Seen) -> Iterator[Caveat]:
    found = {
        label: conditions.num_compiled_files for label, conditions in seen.items() if conditions.num_compiled_files
    }
    if found:
        yield Caveat(
            code="compiled_while_timed",
            text="kernels were compiled while traffic was timed: "
            + ", ".join(f"{count(number or 0, 'file')} in {label}" for label, number in found.items()),
            advice="more warm-up blocks; a second round finds them in the cache",
        )


def _beyond(seen: Seen, cores_of: Callable[[CpuShare], float]) -> dict[str, float]:
    """Label → cores, of the sessions that lost more than they may."""
    shares = {label: conditions.cpu for label, conditions in seen.items() if conditions.cpu}
    cores = {label: cores_of(cpu) for label, cpu in shares.items() if cpu.elapsed_s >= MIN_OBSERVED_S}
    return {label: value for label, value in cores.items() if value > MAX_OTHER_CORES}


def _cpu(conditions: Conditions) -> CpuShare:
    assert conditions.cpu is not None
    return conditions.cpu


def _list(cores: dict[str, float]) -> str:
    return ", ".join(f"{label} {value:.1f}" for label, value in cores.items())


def _gpus(seen: Seen) -> Iterator[tuple[str, GpuConditions]]:
    for label, conditions in seen.items():
        for gpu in conditions.gpus:
            yield label, gpu
