"""Kernel caches: where an engine keeps what it compiles at run time, and whether it wrote there meanwhile.

A kernel that is compiled inside a timed step costs seconds, once: what is measured then is not what users will see.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DIRECTORIES: Mapping[str, tuple[str, ...]] = {
    "TRITON_CACHE_DIR": (".triton/cache",),
    "FLASHINFER_WORKSPACE_BASE": (".cache/flashinfer",),
    "TVM_FFI_CACHE_DIR": (".cache/tvm-ffi",),
    "TORCH_EXTENSIONS_DIR": (".cache/torch_extensions",),
    "CUDA_CACHE_PATH": (".nv/ComputeCache",),
    "SGLANG_DG_CACHE_DIR": (".cache/deep_gemm",),
    "SGLANG_CACHE_DIR": (".cache/sglang",),
}
"""Variable that moves a cache → where it is below the home directory without it."""
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Inductor's own default lies in the temporary directory, by user: `torchinductor_NAME`."""


def find_caches(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The directories that a server with this environment writes compiled kernels to, there or not."""
    home = Path(environ.get("HOME") or "/nonexistent")
    named = [Path(environ[variable]) for variable in (*DIRECTORIES, INDUCTOR) if environ.get(variable)]
    usual = [home / path for name, paths in DIRECTORIES.items() if not environ.get(name) for path in paths]
    shared = [] if environ.get(INDUCTOR) else list(Path(environ.get("TMPDIR") or "/tmp").glob("torchinductor_*"))  # noqa: S108
    return tuple(dict.fromkeys([*named, *usual, *shared]))


def num_written(caches: Iterable[Path], began_s: float, ended_s: float) -> int:
    """How many files in these directories were last written between two instants of `time.time()`, locks apart."""
    return sum(began_s <= modified_s <= ended_s for directory in caches for modified_s in _modified(directory))


def _modified(directory: Path) -> Iterator[float]:
    """When each file below it was written; empty ones are locks."""
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                found = os.stat(os.path.join(place, name))  # noqa: PTH116, PTH118 - ten thousand files: Path costs double
            except OSError:
                continue  # renamed meanwhile
            if found.st_size > 0:
                yield found.st_mtime
