"""Sources: what a bundle's patches, overlays and plugins come to, as whole files. Production reads no diffs."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from loop.content import PluginModule, Replacement
from loop.diffs import parse_diff
from loop.elements import Engaged, Overlay, Patch, Plugin
from loop.errors import BundleError
from loop.packages import Package, is_importable, sha256_of_bytes
from loop.record import Record

MAX_FILE_BYTES = 64 << 20
"""A larger one belongs into a package of its own."""


class Installed(Record):
    """The Python that runs servers, as far as code must fit into it."""

    python: str
    find: Callable[[str], Package]
    """A package by name; raises BundleError if there is none."""


class Sources(Record):
    """The code of a lineage so far."""

    replaced: dict[str, Replacement] = {}
    """By `package/path`."""
    plugins: dict[str, PluginModule] = {}
    """By module."""
    engaged: tuple[Engaged, ...] = ()
    files: dict[str, bytes] = {}
    """By sha256: all that the above names, and more of what stood there before."""


class Elements(Record):
    """The code that one `bundle.toml` declares, and the directory it lies in."""

    directory: Path
    patch: tuple[Patch, ...] = ()
    overlay: tuple[Overlay, ...] = ()
    plugin: tuple[Plugin, ...] = ()
    engaged: tuple[Engaged, ...] = ()


def apply_elements(below: Sources, elements: Elements, installed: Installed) -> Sources:
    """`elements` over the code of the bundle's parents. Raises BundleError for the first that does not fit."""
    replaced, plugins, files = dict(below.replaced), dict(below.plugins), dict(below.files)
    touched: dict[str, str] = {}
    for file, package, path, content, wanted in _new_files(below, elements, installed):
        name = f"{package.name}/{path}"
        if name in touched:
            raise BundleError(f"{touched[name]} and {file} both change {name}: one of them would be lost")
        touched[name] = file
        before = _image(below, package, path)
        _refuse_other_image(file, name, wanted, before, in_parent=name in below.replaced)
        if path.endswith(".py"):
            _refuse_broken(file, content)
        now = package.read(path)
        replaced[name] = Replacement(
            package=package.name,
            path=path,
            pre_sha256=None if now is None else sha256_of_bytes(now),
            post_sha256=sha256_of_bytes(content),
        )
        files[sha256_of_bytes(content)] = content
    for plugin in elements.plugin:
        content = _read(elements.directory, plugin.file)
        _refuse_broken(plugin.file, content)
        if is_importable(installed.python, plugin.module):
            raise BundleError(f"{plugin.file}: module {plugin.module!r} would hide an installed one of that name")
        if plugin.module in below.plugins or [other.module for other in elements.plugin].count(plugin.module) > 1:
            raise BundleError(f"{plugin.file}: there is another plugin called {plugin.module!r}")
        sha256 = sha256_of_bytes(content)
        plugins[plugin.module] = PluginModule(module=plugin.module, sha256=sha256, entry=plugin.entry)
        files[sha256] = content
    return Sources(replaced=replaced, plugins=plugins, engaged=(*below.engaged, *elements.engaged), files=files)


def _new_files(
    below: Sources, elements: Elements, installed: Installed
) -> Iterator[tuple[str, Package, str, bytes, str | None]]:
    """(file in the bundle, package, path below it, new content, what it must hash to now or None for a new file)."""
    for overlay in elements.overlay:
        package = installed.find(overlay.package)
        yield overlay.file, package, overlay.path, _read(elements.directory, overlay.file), overlay.pre_sha256
    for patch in elements.patch:
        package = installed.find(patch.package)
        with _said_of(patch.file):
            diffs = list(parse_diff(_read(elements.directory, patch.file), patch.package))
        unnamed = sorted({diff.path for diff in diffs if not diff.adds_file} - set(patch.pre_sha256))
        idle = sorted(set(patch.pre_sha256) - {diff.path for diff in diffs})
        if unnamed or idle:
            wrong = f"lacks {unnamed[0]}, which" if unnamed else f"names {idle[0]}, which"
            raise BundleError(
                f"{patch.file}: pre_sha256 {wrong} the diff {'changes' if unnamed else 'does not change'}"
            )
        for diff in diffs:
            wanted = patch.pre_sha256.get(diff.path)
            before = _image(below, package, diff.path)
            name = f"{patch.package}/{diff.path}"
            _refuse_other_image(patch.file, name, wanted, before, in_parent=name in below.replaced)
            with _said_of(f"{patch.file}: {name}"):
                yield patch.file, package, diff.path, diff.apply(_text(before or b"")).encode(), wanted


def _image(below: Sources, package: Package, path: str) -> bytes | None:
    """The file as it is before this bundle: a parent's, else the installed one."""
    parents = below.replaced.get(f"{package.name}/{path}")
    return below.files[parents.post_sha256] if parents else package.read(path)


def _refuse_other_image(file: str, name: str, wanted: str | None, now: bytes | None, *, in_parent: bool) -> None:
    """Raise BundleError unless the file is what the change was made for."""
    where = "as its parent leaves it" if in_parent else "as installed"
    if wanted is None and now is not None:
        raise BundleError(f"{file}: {name} exists {where}: pre_sha256 must say what it hashes to")
    if wanted is not None and now is None:
        raise BundleError(f"{file}: {name} does not exist {where}")
    if wanted is not None and now is not None and sha256_of_bytes(now) != wanted:
        raise BundleError(
            f"{file}: {name} {where} hashes to {sha256_of_bytes(now)[:16]}, the change was made for {wanted[:16]}"
        )


def _read(directory: Path, file: str) -> bytes:
    """A file of the bundle; links are refused, because what they point to is not in the bundle's hash."""
    path = directory
    for part in Path(file).parts:
        path /= part
        if path.is_symlink():
            raise BundleError(f"{path} is a symbolic link: a bundle holds its own files")
    if not path.is_file():
        raise BundleError(f"{path} does not exist")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise BundleError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return path.read_bytes()


def _refuse_broken(file: str, content: bytes) -> None:
    try:
        ast.parse(content, file)
    except (SyntaxError, ValueError) as problem:
        where = f" line {problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
        what = problem.msg if isinstance(problem, SyntaxError) else problem
        raise BundleError(f"{file}:{where} is no Python: {what}") from None


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise BundleError(f"it is not UTF-8: {problem}") from None


class _said_of:  # noqa: N801 - reads as a word: `with _said_of(file):`
    """Begin the message of a BundleError raised inside with what it is about."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        if isinstance(value, BundleError):
            raise BundleError(f"{self._what}: {value.what}", next=value.next) from None
