"""A bundle's own files: found below its directory, read, checked and kept by their hash."""

import ast
import hashlib
import stat
from pathlib import Path

from loop.errors import BundleError

MAX_BYTES = 64 << 20


class Sources:
    """The files of the bundle in `directory`; every file that was read is kept in `files` by its sha256."""

    def __init__(self, directory: Path, bundle_id: str) -> None:
        self.directory = directory
        self.bundle_id = bundle_id
        self.files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        """A file by its path in the bundle; raises BundleError unless it is a plain one of at most 64 MiB."""
        path = self.directory / name
        for part in (path, *path.parents):
            if part == self.directory:
                break
            if part.is_symlink():
                raise self.refusal(f"{name} goes through a symbolic link, {part.relative_to(self.directory)}")
        try:
            status = path.stat()
        except OSError as problem:
            raise self.refusal(f"{name} cannot be read: {problem.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise self.refusal(f"{name} is not a file")
        if status.st_size > MAX_BYTES:
            raise self.refusal(f"{name} has {status.st_size / 1e6:.0f} MB; {MAX_BYTES >> 20} MiB are allowed")
        try:
            return path.read_bytes()
        except OSError as problem:
            raise self.refusal(f"{name} cannot be read: {problem.strerror}") from None

    def read_text(self, name: str) -> str:
        """Its text; raises BundleError if it is not UTF-8."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as problem:
            raise self.refusal(
                f"{name} is not UTF-8: byte {problem.start} is {problem.object[problem.start]:#04x}"
            ) from None

    def keep(self, name: str) -> str:
        """Read it and keep it; returns its sha256."""
        return self.keep_bytes(self.read(name))

    def keep_module(self, name: str, entry: str | None = None) -> str:
        """The same for a Python file, which must compile and, if `entry` is given, define it."""
        data = self.read(name)
        tree = self.compile(name, data)
        if entry is not None and not _binds(tree, entry):
            raise self.refusal(f"{name} does not define {entry}")
        return self.keep_bytes(data)

    def keep_bytes(self, data: bytes) -> str:
        """Keep this content; returns its sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        self.files[sha256] = data
        return sha256

    def compile(self, name: str, data: bytes) -> ast.Module:
        """Raises BundleError with the line of a syntax error."""
        try:
            return ast.parse(data, name)
        except SyntaxError as problem:
            raise self.refusal(f"{name} does not compile: line {problem.lineno}: {problem.msg}") from None
        except ValueError as problem:  # a null byte
            raise self.refusal(f"{name} does not compile: {problem}") from None

    def refusal(self, what: str) -> BundleError:
        """An error about this bundle."""
        return BundleError(f"{self.bundle_id}: {what}", next=f"mend {self.directory}")


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether a module may define `name` at its top level; a star import may define anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.alias) and name in ("*", node.asname or node.name):
            return True
        if isinstance(node, ast.alias) and node.name == "*":
            return True
    return False
