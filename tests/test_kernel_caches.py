"""Kernel caches: whether an engine compiled something meanwhile."""

import os
from pathlib import Path

from loop.kernel_caches import find_caches, num_written


def test_what_was_written_meanwhile_is_counted(tmp_path: Path) -> None:
    """Not what was there before, nor what came after, nor a lock."""
    for name, at_s, content in (("old", 50, "x"), ("new", 150, "x"), ("late", 250, "x"), ("lock", 150, "")):
        path = tmp_path / "deep" / f"{name}.cubin"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        os.utime(path, (at_s, at_s))

    assert 1 == num_written([tmp_path, tmp_path / "never made"], 100, 200)


def test_caches_are_where_the_environment_of_the_server_says(tmp_path: Path) -> None:
    """A variable moves a cache; the others stay below the home directory."""
    caches = find_caches({"HOME": "/home/me", "TRITON_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)})

    assert tmp_path in caches
    assert Path("/home/me/.cache/flashinfer") in caches
    assert Path("/home/me/.triton/cache") not in caches


def test_inductors_cache_lies_in_the_temporary_directory(tmp_path: Path) -> None:
    """By user, whoever that is in a container."""
    (tmp_path / "torchinductor_root").mkdir()

    assert tmp_path / "torchinductor_root" in find_caches({"TMPDIR": str(tmp_path)})
