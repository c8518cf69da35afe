"""Things built once: whole or not at all, also under two builders."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loop import overlay
from loop.overlay import build_once, build_plugin

POINT = {"group": "loop.test.platforms", "name": "loop_cpu", "file": "plugin.py", "attribute": "activate"}
BUILDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import overlay
root, me, other = Path(sys.argv[2]), sys.argv[3], sys.argv[4]

def fill(directory):
    (directory / "half").write_text(me)
    (root / me).touch()
    while not (root / other).exists():
        time.sleep(0.002)
    (directory / "whole").write_text(me)

print(overlay.build_once(root / "built" / "target", fill))
"""


def files(directory: Path) -> list[str]:
    """Every file below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    """The name is the content's hash."""
    calls = []

    def fill(directory: Path) -> None:
        calls.append(directory)
        (directory / "file").write_text("x")

    first = build_once(tmp_path / "a" / "target", fill)
    second = build_once(tmp_path / "a" / "target", fill)

    assert first == second == tmp_path / "a" / "target"
    assert 1 == len(calls)
    assert ["target", "target/file"] == files(tmp_path / "a")


def test_two_threads_at_once_agree_on_one_result(tmp_path: Path) -> None:
    """Both are in the middle of building when the first one finishes."""
    both = threading.Barrier(2, timeout=10)

    def build(name: str) -> Path:
        def fill(directory: Path) -> None:
            (directory / "half").write_text(name)
            both.wait()
            (directory / "whole").write_text(name)

        return build_once(tmp_path / "target", fill)

    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(build, ["one", "two"]))

    assert [tmp_path / "target"] * 2 == built
    assert ["target", "target/half", "target/whole"] == files(tmp_path)
    assert (tmp_path / "target" / "half").read_text() == (tmp_path / "target" / "whole").read_text()


def test_two_processes_at_once_agree_on_one_result(tmp_path: Path) -> None:
    """As two launches of a server do."""
    folder = str(Path(overlay.__file__).parent)
    names = [("one", "two"), ("two", "one")]
    builders = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", BUILDER, folder, str(tmp_path), *pair], stdout=subprocess.PIPE, text=True
        )
        for pair in names
    ]

    printed = [builder.communicate(timeout=20)[0].strip() for builder in builders]

    assert [str(tmp_path / "built" / "target")] * 2 == printed
    assert ["target", "target/half", "target/whole"] == files(tmp_path / "built")


@pytest.mark.parametrize("problem", [ValueError("a bad patch"), OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(tmp_path: Path, problem: BaseException) -> None:
    """And the next attempt starts afresh."""

    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise problem

    with pytest.raises(type(problem)):
        build_once(tmp_path / "target", fail)

    assert [] == files(tmp_path)
    assert build_once(tmp_path / "target", lambda directory: (directory / "file").touch()).is_dir()


def test_a_plugin_is_found_by_python_without_being_installed(tmp_path: Path) -> None:
    """Through PYTHONPATH alone, in another process."""
    source = tmp_path / "plugin.py"
    source.write_text("def activate():\n    return 'active'\n")

    directory = build_plugin(tmp_path / "runtime", source, POINT)

    script = (
        "from importlib.metadata import entry_points;"
        f"print([(point.name, point.load()()) for point in entry_points(group={POINT['group']!r})])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "[('loop_cpu', 'active')]\n" == found.stdout


def test_a_plugin_is_built_once_per_content(tmp_path: Path) -> None:
    """Another source or another entry point is another directory; the same is the same."""
    source = tmp_path / "plugin.py"
    source.write_text("activate = 1\n")
    first = build_plugin(tmp_path, source, POINT)
    same = build_plugin(tmp_path, source, dict(reversed(POINT.items())))
    renamed = build_plugin(tmp_path, source, {**POINT, "name": "other"})
    source.write_text("activate = 2\n")
    changed = build_plugin(tmp_path, source, POINT)

    assert first == same
    assert 3 == len({first, renamed, changed})
