"""The machine a round ran on: its fingerprint, its processes, its ports, and the state of the tool itself."""

import hashlib
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from loop import __version__
from loop.errors import UnfitError
from loop.record import Record, sha256_of, sha256_of_file
from loop.workspace import current_device

MIN_FREE_BYTES = 256 << 20
"""Below it no round starts."""
MARK = "LOOP_SESSION"
"""Environment variable that every process of a server inherits: `<round>/<label>`."""


class Gpu(Record):
    """One GPU as the driver reports it."""

    name: str
    uuid: str
    memory_bytes: int
    power_limit_w: float | None
    max_sm_clock_mhz: float | None


VOLATILE = ("boot_id", "memory_bytes")
"""Fields of `Host` that one machine may change by itself: it boots, and some virtual machines grow as they are used."""


class Host(Record):
    """What must be equal for two sessions to be comparable."""

    machine: str
    """The host's name, made safe for a file name."""
    device: str
    """The device that production would find here."""
    cpu: str
    num_cpus: int
    memory_bytes: int
    kernel: str
    boot_id: str
    """Changes with every boot."""
    python: str
    driver: str | None
    gpus: tuple[Gpu, ...]


class Revision(Record):
    """The state of the tool and the workspace in git."""

    version: str
    package_sha256: str
    """Over the source of the `loop` that ran, wherever it was installed: the judge proves itself outside git too."""
    commit: str | None
    """None outside a git checkout."""
    dirty: tuple[str, ...]
    """Changed or untracked paths under `loop/` and `workloads/`: the judge must not be edited with the judged."""


def read_host() -> Host:
    """This machine, now."""
    driver, gpus = _read_gpus()
    return Host(
        machine=machine_name(),
        device=current_device(),
        cpu=_cpu_model(),
        num_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        python=platform.python_version(),
        driver=driver,
        gpus=gpus,
    )


def machine_name() -> str:
    """The host's name, made safe for a file name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname()) or "localhost"


def read_revision(root: Path) -> Revision:
    """The commit of the workspace at `root` and what is dirty in the judge's folders."""
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "--", "loop", "workloads", "launch_server.sh")
    dirty = tuple(line[3:] for line in (status or "").splitlines())
    return Revision(
        version=__version__,
        package_sha256=hash_package(),
        commit=commit.strip() if commit else None,
        dirty=dirty,
    )


def hash_package() -> str:
    """sha256 over the names and contents of this package's files, compiled modules apart."""
    package = Path(__file__).parent
    files = sorted(p for p in package.rglob("*") if p.is_file() and p.suffix not in (".pyc", ".pyo"))
    return sha256_of({str(path.relative_to(package)): sha256_of_file(path) for path in files})


def hash_model(directory: Path) -> str:
    """A model's identity: small files whole, weight files by size and their first and last MiB.

    Reading terabytes before each round would cost more than it proves; config, tokenizer and index are hashed whole.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in directory.iterdir() if p.is_file() and not p.name.startswith(".")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}\n".encode())
        with path.open("rb") as file:
            if size <= 64 << 20:
                digest.update(file.read())
            else:
                digest.update(file.read(1 << 20))
                file.seek(-(1 << 20), os.SEEK_END)
                digest.update(file.read())
    return digest.hexdigest()


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_open(port: int) -> bool:
    """Whether something accepts connections on 127.0.0.1:`port`."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def refuse_occupied(port: int) -> None:
    """Raise UnfitError if something listens on `port`: the client would measure another server."""
    if port_open(port):
        raise UnfitError(
            f"port {port} is in use: the client would measure another server",
            next="end what listens there, or let `loop run` choose a port",
        )


def refuse_full(directory: Path, min_free_bytes: int = MIN_FREE_BYTES) -> None:
    """Raise UnfitError where a round would run out of room: what cannot be written is lost."""
    at = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(at).free
    if free < min_free_bytes:
        raise UnfitError(
            f"{at} has {free / 2**20:.1f} MiB left; a round needs {min_free_bytes >> 20} MiB for its records",
            next="make room: old rounds' raw data may be moved away",
        )


def marked_processes(mark: str) -> Iterator[psutil.Process]:
    """Living processes whose environment carries `LOOP_SESSION=<mark>...`, detached ones too."""
    needle = f"{MARK}={mark}".encode()
    for process in psutil.process_iter():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            carries = any(item.startswith(needle) for item in environ.split(b"\0"))
            if carries and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (OSError, psutil.Error):
            continue  # ended meanwhile, or another user's


def end_processes(processes: list[psutil.Process], *, grace_s: float) -> None:
    """Kill these processes and wait until they are gone, at most `grace_s`."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, timeout=grace_s)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _read_gpus() -> tuple[str | None, tuple[Gpu, ...]]:
    """(driver version, GPUs) from nvidia-smi; (None, ()) where there is none."""
    fields = "driver_version,name,uuid,memory.total,power.limit,clocks.max.sm"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, ()
    if done.returncode != 0:
        return None, ()
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    gpus = tuple(
        Gpu(
            name=name,
            uuid=uuid,
            memory_bytes=int(float(memory_mib) * (1 << 20)),
            power_limit_w=_number(power),
            max_sm_clock_mhz=_number(clock),
        )
        for _, name, uuid, memory_mib, power, clock in rows
    )
    return (rows[0][0], gpus) if rows else (None, ())


def _number(cell: str) -> float | None:
    """A number, or None where the driver says `[N/A]`."""
    try:
        return float(cell)
    except ValueError:
        return None
