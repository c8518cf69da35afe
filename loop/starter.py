"""`loop init`: a new workspace, and synthetic checkpoints in one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import tomlkit

from loop import shipped
from loop.effective import read_files
from loop.errors import BundleError, InputError
from loop.plan import load_engine, load_original, stored_original
from loop.workspace import MARKER, Workspace, find_workspace

LAUNCH_FILES = (
    "loop/launch.py",
    "loop/overlay.py",
    "loop/activation.py",
    "loop/kernels.py",
    "loop/transforms.py",
    "loop/receipts.py",
    "loop/witness.py",
    "loop/cpu_platform.py",
)
"""Standard library only: they are copied beside the launcher, so that it serves where `loop` is not installed."""
CANDIDATES = ("original", "noop")


def init(directory: Path, *, synthetic: str | None, seed: int, model_dir: Path | None) -> Iterator[str]:
    """Make what is missing in `directory`, saying what was made, line by line. Safe to repeat."""
    if not (directory / MARKER).exists():
        if synthetic is not None and directory == Path():
            find_workspace(directory)  # raises: there is none to put the checkpoint in
        yield from _make_workspace(directory)
    yield from refresh_originals(find_workspace(directory))
    if synthetic is not None:
        yield from _make_checkpoint(directory, synthetic, seed, model_dir)


def refresh_originals(workspace: Workspace) -> Iterator[str]:
    """Write `effective.json` of every device's original, which the launcher reads while nothing is shipped."""
    engine = load_engine(workspace, None)
    originals = {device: s.original for device, s in workspace.settings.device.items() if s.original != "original"}
    pointer = shipped.read(workspace)
    if pointer.originals != originals:
        shipped.write(workspace, pointer.model_copy(update={"originals": originals}))
        yield "wrote candidates/shipped.json"
    for name in sorted({"original", *originals.values()}):
        _, effective, files = load_original(workspace, engine, name)
        try:
            stored = stored_original(workspace, name)
            read_files(workspace.candidates / name, effective.content.file_hashes)
        except BundleError:
            stored = None  # edited, incomplete, or of an older schema: written anew either way
        if stored != effective:
            yield f"wrote {effective.write(workspace.candidates / name, files).relative_to(workspace.root)}"


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
    ignored = directory / ".gitignore"
    lines = ignored.read_text().splitlines() if ignored.exists() else []
    missing = [line for line in ("ledger/raw/", "ledger/.lock*", "models/") if line not in lines]
    ignored.write_text("\n".join([*lines, *missing, ""]))
    document = tomlkit.document()
    document["schema"] = "loop.workspace/1"
    document["suite"] = "smoke"
    document["engine"] = {"name": "sglang"}
    # Seen between servers on two shared cores; a GPU host has about the default of 1 %.
    document["device"] = {"cpu": {"sigma_prior_pct": 4.0}}
    (directory / MARKER).write_text(tomlkit.dumps(document))
    yield f"workspace {directory.resolve()}"
    yield "next: `loop init --synthetic tiny` makes a small model, or set [model] path in loop.toml to one you have"


def _make_checkpoint(directory: Path, synthetic: str, seed: int, model_dir: Path | None) -> Iterator[str]:
    from loop.synthetic import generate  # numpy and tokenizers: not every `init` needs them

    name = synthetic if "/" not in synthetic and not synthetic.endswith(".json") else Path(synthetic).parent.name
    target = model_dir or directory / "models" / (name or "synthetic")
    if (target / "config.json").exists():
        yield f"model {target} is there already"
    else:
        generate(target, geometry=synthetic, seed=seed)
        total = sum(path.stat().st_size for path in target.iterdir())
        yield f"model {target}, {total / 1e6:.1f} MB, seed {seed}"
    if find_workspace(directory).settings.model.path is None:
        yield f"next: `loop plan noop --model {target}`, or name it for good: [model] path in {directory / MARKER}"


def _source() -> Path:
    """Where the files to copy are: in the installed package, or in the checkout it is installed from."""
    package = Path(__file__).parent
    bundled = package / "starter_files"
    source = bundled if bundled.is_dir() else package.parent
    if not (source / "launch_server.sh").is_file():
        raise InputError(f"{source} lacks launch_server.sh: this installation of loop is incomplete")
    return source


def _copy(source: Path, target: Path) -> None:
    """Copy what is missing; what is there is somebody's."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]:
        copy = target / path.relative_to(source) if source.is_dir() else target
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
