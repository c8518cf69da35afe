"""`loop init`: a new workspace, and synthetic checkpoints in one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import tomlkit

from loop.errors import InputError
from loop.workspace import MARKER, find_workspace

LAUNCH_FILES = ("loop/launch.py", "loop/overlay.py", "loop/cpu_platform.py")
"""Standard library only: they are copied beside the launcher, so that it serves where `loop` is not installed."""
CANDIDATES = ("original", "noop")


def init(directory: Path, *, synthetic: str | None, seed: int, model_dir: Path | None) -> Iterator[str]:
    """Make what is missing in `directory`, saying what was made, line by line."""
    if not (directory / MARKER).exists():
        if synthetic is None or directory != Path():
            yield from _make_workspace(directory)
        else:
            find_workspace(directory)  # raises: there is none to put the checkpoint in
    elif synthetic is None:
        raise InputError(f"{directory / MARKER} exists: {directory} is a workspace already")
    if synthetic is not None:
        yield from _make_checkpoint(directory, synthetic, seed, model_dir)


def _make_workspace(directory: Path) -> Iterator[str]:
    source = _source()
    for name in LAUNCH_FILES:
        _copy(source / name, directory / name)
    _copy(source / "launch_server.sh", directory / "launch_server.sh")
    for name in CANDIDATES:
        _copy(source / "candidates" / name, directory / "candidates" / name)
    for suite in sorted(path.parent for path in (source / "workloads").glob("*/suite.toml")):
        _copy(suite, directory / "workloads" / suite.name)
    for name in ("ledger", "reports"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / ".gitignore").write_text("ledger/raw/\nledger/.lock*\nmodels/\n")
    document = tomlkit.document()
    document["schema"] = "loop.workspace/1"
    document["suite"] = "smoke"
    document["engine"] = {"name": "sglang"}
    (directory / MARKER).write_text(tomlkit.dumps(document))
    yield f"workspace {directory.resolve()}"
    yield "next: set [model] path in loop.toml, or `loop init --synthetic tiny`; then `loop plan noop`"


def _make_checkpoint(directory: Path, synthetic: str, seed: int, model_dir: Path | None) -> Iterator[str]:
    from loop.synthetic import generate  # numpy and tokenizers: not every `init` needs them

    name = synthetic if "/" not in synthetic and not synthetic.endswith(".json") else Path(synthetic).parent.name
    target = model_dir or directory / "models" / (name or "synthetic")
    if (target / "config.json").exists():
        yield f"model {target} is there already"
        return
    generate(target, geometry=synthetic, seed=seed)
    total = sum(path.stat().st_size for path in target.iterdir())
    yield f"model {target}, {total / 1e6:.1f} MB, seed {seed}"


def _source() -> Path:
    """Where the files to copy are: in the installed package, or in the checkout it is installed from."""
    package = Path(__file__).parent
    bundled = package / "starter_files"
    source = bundled if bundled.is_dir() else package.parent
    if not (source / "launch_server.sh").is_file():
        raise InputError(f"{source} lacks launch_server.sh: this installation of loop is incomplete")
    return source


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)
