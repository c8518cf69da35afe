"""Patches and overlays, resolved to whole files that take the place of installed ones."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from loop.diffs import FileDiff, apply_diff, parse_diff
from loop.elements import Overlay, Patch, Replaced, plain_path
from loop.errors import BundleError
from loop.sources import Sources

Installed = Callable[[Sequence[str]], Mapping[str, str | None]]
"""Top-level module names → where the server's Python finds them: a package's directory, a file, or None."""
Replacements = dict[tuple[str, str], Replaced]


class Replacement:
    """The files that a bundle replaces, on top of those that its parents do."""

    def __init__(
        self, sources: Sources, parent: Sequence[Replaced], files: Mapping[str, bytes], installed: Installed
    ) -> None:
        self._sources = sources
        self._installed = installed
        self._files = files
        self._parent = {(item.package, item.path): item for item in parent}
        self._current = dict(self._parent)
        self._touched: dict[tuple[str, str], str] = {}
        self._roots: dict[str, Path] = {}

    def apply(self, patches: Sequence[Patch], overlays: Sequence[Overlay]) -> tuple[Replaced, ...]:
        """All of them, patches first, in order; raises BundleError for the first that does not fit."""
        self._find_packages({item.package for item in patches} | {item.package for item in overlays})
        for patch in patches:
            self._patch(patch)
        for overlay in overlays:
            self._overlay(overlay)
        return tuple(item for _, item in sorted(self._current.items()))

    def _patch(self, patch: Patch) -> None:
        diffs = parse_diff(self._sources.read_text(patch.file), name=f"{self._sources.bundle_id}: {patch.file}")
        strangers = sorted(set(patch.pre_sha256) - {diff.path for diff in diffs if not diff.creates})
        if strangers:
            raise self._sources.refusal(f"pre_sha256 names {strangers[0]}, which {patch.file} does not change")
        for diff in diffs:
            self._patch_file(patch, diff)

    def _patch_file(self, patch: Patch, diff: FileDiff) -> None:
        try:
            key = (patch.package, plain_path(diff.path))
        except ValueError as problem:
            raise self._sources.refusal(f"{patch.file}: {problem}") from None
        before = self._now(key)
        if diff.creates:
            if before is not None:
                raise self._sources.refusal(f"{patch.file} creates {diff.path}, and {patch.package} has it already")
            text = ""
        else:
            self._check_pre_image(key, patch.pre_sha256.get(diff.path), before, patch.file)
            assert before is not None
            try:
                text = before.decode()
            except UnicodeDecodeError:
                raise self._sources.refusal(f"{'/'.join(key)} is not UTF-8: replace it by an [[overlay]]") from None
        made = apply_diff(diff, text, name=f"{self._sources.bundle_id}: {patch.file}")
        self._replace(key, made.encode(), patch.file)

    def _overlay(self, overlay: Overlay) -> None:
        key = (overlay.package, overlay.path)
        if key in self._touched:
            raise self._sources.refusal(f"{'/'.join(key)} is changed twice, by {self._touched[key]} and {overlay.file}")
        before = self._now(key)
        if before is not None or overlay.pre_sha256 is not None:
            self._check_pre_image(key, overlay.pre_sha256, before, overlay.file)
        self._replace(key, self._sources.read(overlay.file), overlay.file)

    def _replace(self, key: tuple[str, str], data: bytes, file: str) -> None:
        name, before = "/".join(key), self._read_installed(key)
        if key[1].endswith(".py"):
            self._sources.compile(f"{name} as {file} makes it", data)
        self._touched[key] = file
        if data == before:  # a child may take back what its parent did
            if self._current.pop(key, None) is None:
                raise self._sources.refusal(f"{file} changes nothing: {name} is installed like that")
            return
        pre_sha256 = None if before is None else hashlib.sha256(before).hexdigest()
        package, path = key
        post_sha256 = self._sources.keep_bytes(data)
        self._current[key] = Replaced(package=package, path=path, pre_sha256=pre_sha256, post_sha256=post_sha256)

    def _check_pre_image(self, key: tuple[str, str], claimed: str | None, before: bytes | None, file: str) -> None:
        """It may be claimed of what is installed, or of what the parent made of that."""
        name = "/".join(key)
        if before is None:
            raise self._sources.refusal(f"{file} changes {name}, which is not installed")
        now, installed = hashlib.sha256(before).hexdigest(), self._read_installed(key)
        if claimed is None:
            raise self._sources.refusal(f"{file} changes {name} without its pre_sha256, which is {now}")
        known = {now} if installed is None else {now, hashlib.sha256(installed).hexdigest()}
        if claimed not in known:
            found = " or ".join(sorted(known))
            raise self._sources.refusal(f"{file} is for another {name}: pre_sha256 says {claimed}, here it is {found}")

    def _now(self, key: tuple[str, str]) -> bytes | None:
        """The file as the bundle has made it so far, else as its parents have, else as it is installed."""
        current = self._current.get(key)
        if current is None:
            return self._read_installed(key)
        return {**self._files, **self._sources.files}[current.post_sha256]

    def _read_installed(self, key: tuple[str, str]) -> bytes | None:
        package, path = key
        root = self._roots[package]
        file = root / path
        if not file.resolve().is_relative_to(root.resolve()):
            raise self._sources.refusal(f"{package}/{path} leads out of the package")
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._sources.refusal(f"{file} cannot be read: {problem.strerror}") from None

    def _find_packages(self, names: set[str]) -> None:
        found = self._installed(sorted(names)) if names else {}
        for name in sorted(names):
            place = found.get(name)
            if place is None or not Path(place).is_dir():
                why = "is not installed for the server's Python" if place is None else "is a module, not a package"
                raise BundleError(f"{self._sources.bundle_id}: the package {name} {why}")
            self._roots[name] = Path(place)


def refuse_changed(replaced: Sequence[Replaced], installed: Installed, bundle_id: str) -> None:
    """Raise BundleError where what is shipped replaces a file that is no longer installed as it was."""
    roots = installed(sorted({item.package for item in replaced})) if replaced else {}
    for item in replaced:
        path = Path(roots.get(item.package) or "/nonexistent") / item.path
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if found != item.pre_sha256:
            raise BundleError(
                f"{bundle_id}: its parent, what is shipped, no longer fits: it replaces {item.name} of "
                f"{item.pre_sha256}, installed is {found}",
                next="`loop promote --rollback`, or start from another parent",
            )
