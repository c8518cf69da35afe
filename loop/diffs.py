"""Unified diffs, applied strictly: every context line and every removed line must stand exactly where the diff says."""

import re
from collections.abc import Iterator

from unidiff.constants import LINE_TYPE_NO_NEWLINE
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from loop.errors import BundleError


class FileDiff:
    """What one diff does to one file."""

    def __init__(self, path: str, parsed: PatchedFile) -> None:
        self.path = path
        """Below the package."""
        self.adds_file = parsed.is_added_file
        self._hunks = list(parsed)

    def apply(self, text: str) -> str:
        """`text` with every hunk applied; raises BundleError naming the hunk and the first line that differs."""
        lines = _lines(text)
        result: list[str] = []
        place = 0
        for hunk in self._hunks:
            old, new = _sides(hunk)
            start = hunk.source_start - 1 if hunk.source_length else hunk.source_start
            header = f"hunk @@ -{hunk.source_start},{hunk.source_length} @@"
            if start < place:
                raise BundleError(f"{header} overlaps the one before it")
            for offset, wanted in enumerate(old):
                found = lines[start + offset] if start + offset < len(lines) else None
                if found != wanted:
                    shown = "the file ends before it" if found is None else f"it is {found.rstrip()!r}"
                    raise BundleError(
                        f"{header} does not apply: line {start + offset + 1} should be {wanted.rstrip()!r}, {shown}"
                    )
            result += [*lines[place:start], *new]
            place = start + len(old)
        return "".join([*result, *lines[place:]])


def parse_diff(content: bytes, package: str) -> Iterator[FileDiff]:
    """The files of a diff. Raises BundleError for what is no diff, and for files that are removed or renamed."""
    try:
        parsed = PatchSet(content.decode("utf-8"))
    except UnicodeDecodeError as problem:
        raise BundleError(f"it is not UTF-8: {problem}") from None
    except UnidiffParseError as problem:
        raise BundleError(f"it is not a unified diff: {problem}") from None
    if not parsed:
        raise BundleError("it is not a unified diff: it changes no file")
    for file in parsed:
        if file.is_removed_file or file.is_rename or file.is_binary_file:
            what = "removes" if file.is_removed_file else "renames" if file.is_rename else "holds binary data for"
            raise BundleError(f"it {what} {file.path}: a patch changes text files and adds new ones")
        yield FileDiff(re.sub(rf"^{re.escape(package)}/", "", file.path), file)


def _sides(hunk: Hunk) -> tuple[list[str], list[str]]:
    """(lines before, lines after), each with its line end where it has one."""
    old: list[str] = []
    new: list[str] = []
    last: list[list[str]] = []
    for line in hunk:
        if line.line_type == LINE_TYPE_NO_NEWLINE:  # of the line above it
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = [side for side, takes in ((old, not line.is_added), (new, not line.is_removed)) if takes]
        for side in last:
            side.append(line.value)
    return old, new


def _lines(text: str) -> list[str]:
    """Lines with their ends: a line ends at LF and nothing else, as in a diff."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)
