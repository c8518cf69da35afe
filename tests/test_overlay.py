"""Overlays: a copy of what is installed with the bundle's files in it, built once and proven before every use."""

import hashlib
import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from loop.overlay import OverlayError, build_overlay

OLD = b"SPEED = 1\n"
NEW = b"SPEED = 2\n"
OTHER = "0" * 64

pytestmark = pytest.mark.usefixtures("site")


def sha(content: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path with a package called gadget: a module, one more below, and data."""
    package = tmp_path / "site" / "gadget"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "inner/__init__.py"):
        (package / name).write_bytes(b"")
    (package / "core.py").write_bytes(OLD)
    (package / "table.json").write_bytes(b"{}")
    monkeypatch.syspath_prepend(str(package.parent))
    return package.parent


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An effective bundle's directory that holds the new file."""
    files = tmp_path / "bundle" / "files"
    files.mkdir(parents=True)
    (files / sha(NEW)).write_bytes(NEW)
    return files.parent


def replaced(**fields: Any) -> list[dict[str, Any]]:
    """One replaced file."""
    usual = {"package": "gadget", "path": "core.py", "pre_sha256": sha(OLD), "post_sha256": sha(NEW)}
    return [{**usual, **fields}]


def speed_in(overlay: Path) -> str:
    """What a fresh Python finds with the overlay first on its path."""
    program = "import gadget.core, gadget.inner; print(gadget.core.SPEED, gadget.core.__file__)"
    env = {**os.environ, "PYTHONPATH": str(overlay)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def test_the_copy_has_the_new_file_and_the_rest(site: Path, bundle: Path, tmp_path: Path) -> None:
    """What is installed stays as it was."""
    overlay = build_overlay(tmp_path / "runtime", bundle, replaced())

    assert "2" == speed_in(overlay)
    assert b"{}" == (overlay / "gadget" / "table.json").read_bytes()
    assert OLD == (site / "gadget" / "core.py").read_bytes()
    assert [overlay.name] == [path.name for path in overlay.parent.iterdir()]


def test_it_is_built_once_by_however_many(bundle: Path, tmp_path: Path) -> None:
    """Two launches at once agree."""
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: build_overlay(tmp_path / "runtime", bundle, replaced()), range(8)))

    assert 1 == len(set(built))
    assert 1 == len(list((tmp_path / "runtime" / "overlays").iterdir()))


def test_another_installation_gets_another_copy(site: Path, bundle: Path, tmp_path: Path) -> None:
    """Also when nothing but a file beside the replaced one has changed."""
    first = build_overlay(tmp_path / "runtime", bundle, replaced())
    (site / "gadget" / "table.json").write_bytes(b"[1]")

    second = build_overlay(tmp_path / "runtime", bundle, replaced())

    assert (b"{}", b"[1]") == tuple((path / "gadget" / "table.json").read_bytes() for path in (first, second))


def test_a_new_file_may_be_added_where_there_is_none(bundle: Path, tmp_path: Path) -> None:
    """Also in a directory that is new."""
    overlay = build_overlay(tmp_path / "runtime", bundle, replaced(path="fresh/more.py", pre_sha256=None))

    assert NEW == (overlay / "gadget" / "fresh" / "more.py").read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"pre_sha256": "0" * 64},
            f"gadget/core.py as installed hashes to {sha(OLD)}; the bundle was made for {'0' * 64}",
        ),
        ({"pre_sha256": None}, "the bundle was made for a package without it"),
        ({"path": "gone.py"}, "gadget/gone.py as installed hashes to nothing: it does not exist"),
        ({"package": "nosuchgadget"}, "has no package 'nosuchgadget'"),
        ({"post_sha256": "1" * 64}, f"{'1' * 64} cannot be read"),
    ],
)
def test_what_it_was_not_made_for_is_refused(
    bundle: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    """With the file, both hashes and the way out; nothing half-built is left."""
    with pytest.raises(OverlayError) as refusal:
        build_overlay(tmp_path / "runtime", bundle, replaced(**fields))

    assert message in str(refusal.value)
    assert "LOOP_NO_OVERLAY=1 serves the original" in refusal.value.way_out
    assert [] == list((tmp_path / "runtime").glob("overlays/*"))


def test_an_edited_file_of_the_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    """It does not hash to its name."""
    (bundle / "files" / sha(NEW)).write_bytes(b"SPEED = 3\n")

    with pytest.raises(OverlayError, match="was edited: it does not hash to its name"):
        build_overlay(tmp_path / "runtime", bundle, replaced())


@pytest.mark.parametrize("what", ["gadget/core.py", "gadget/table.json", "gadget/inner/__init__.py"])
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_copy_that_was_touched_is_not_used(bundle: Path, tmp_path: Path, what: str, how: str) -> None:
    """Whichever file it is; the message says what to remove."""
    overlay = build_overlay(tmp_path / "runtime", bundle, replaced())
    if how == "removed":
        (overlay / what).unlink()
    else:
        (overlay / what).write_bytes(b"SPEED = 9\n")

    with pytest.raises(OverlayError, match=rf"{what} was changed or removed") as refusal:
        build_overlay(tmp_path / "runtime", bundle, replaced())

    assert f"remove {overlay}: the next start builds it again" == refusal.value.way_out


@pytest.mark.parametrize("name", ["gadget/extra.py", "gadget/__pycache__/core.cpython-399.pyc", "sitecustomize.py"])
def test_nothing_that_could_be_imported_is_added(bundle: Path, tmp_path: Path, name: str) -> None:
    """A compiled file beside the source would run instead of it."""
    overlay = build_overlay(tmp_path / "runtime", bundle, replaced())
    (overlay / name).write_bytes(b"")

    with pytest.raises(OverlayError, match="was added after the overlay was built"):
        build_overlay(tmp_path / "runtime", bundle, replaced())


def test_running_from_it_adds_nothing(bundle: Path, tmp_path: Path) -> None:
    """It is compiled when it is built."""
    overlay = build_overlay(tmp_path / "runtime", bundle, replaced())
    speed_in(overlay)

    assert overlay == build_overlay(tmp_path / "runtime", bundle, replaced())


def test_a_full_disk_leaves_nothing_half_built(site: Path, bundle: Path, tmp_path: Path) -> None:
    """The next start, with room, builds it whole."""
    (site / "gadget" / "large.bin").write_bytes(b"x" * 100_000)
    program = (
        "import json, resource, signal, sys; from pathlib import Path; from loop.overlay import build_overlay;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "build_overlay(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    arguments = [str(tmp_path / "runtime"), str(bundle), json.dumps(replaced())]

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "File too large" in done.stderr
    assert [] == list((tmp_path / "runtime").glob("overlays/*"))
    assert "2" == speed_in(build_overlay(tmp_path / "runtime", bundle, replaced()))
