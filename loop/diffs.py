"""Unified diffs, applied strictly: every context and removed line must be exactly where the hunk says it is."""

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from loop.errors import BundleError
from loop.record import Record

NOWHERE = "/dev/null"


class FileDiff(Record):
    """What a diff does to one file."""

    path: str
    """In the package, `a/` and `b/` removed."""
    creates: bool
    """It has no source."""
    hunks: tuple["HunkDiff", ...]


class HunkDiff(Record):
    """One hunk: which lines must be there, and which take their place. Lines keep their line endings."""

    header: str
    start: int
    """Line of the source where it begins, from 1; the line before it for a hunk without source lines."""
    old: tuple[str, ...]
    new: tuple[str, ...]


def parse_diff(text: str, *, name: str) -> tuple[FileDiff, ...]:
    """The files of a unified diff called `name`; raises BundleError for renames, deletions and what is no diff."""
    try:
        files = PatchSet(text)
    except UnidiffParseError as problem:
        raise BundleError(f"{name} is not a unified diff: {problem}") from None
    if not files:
        raise BundleError(f"{name} is not a unified diff: it names no file")
    return tuple(_file(file, name) for file in files)


def apply_diff(diff: FileDiff, text: str, *, name: str) -> str:
    """`text` with every hunk applied; raises BundleError naming file, hunk and the first line that differs."""
    lines = _split(text)
    made: list[str] = []
    done = 0
    for hunk in diff.hunks:
        where = f"{name}: {diff.path}: hunk {hunk.header}"
        begin = hunk.start - 1 if hunk.old else hunk.start
        if begin < done:
            raise BundleError(f"{where} begins inside the hunk before it")
        if begin > len(lines):
            raise BundleError(f"{where} does not apply: the file ends at line {len(lines)}")
        for number, expected in enumerate(hunk.old, begin):
            found = lines[number] if number < len(lines) else None
            if found != expected:
                raise BundleError(
                    f"{where} does not apply: line {number + 1} should be {_show(expected)}, it is {_show(found)}"
                )
        made += [*lines[done:begin], *hunk.new]
        done = begin + len(hunk.old)
    made += lines[done:]
    if any(not line.endswith("\n") for line in made[:-1]):
        raise BundleError(f"{name}: {diff.path}: a line without a newline is not the last one")
    return "".join(made)


def _split(text: str) -> list[str]:
    """Lines end at a line feed only, as diff tools have it."""
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]


def _file(file: PatchedFile, name: str) -> FileDiff:
    source, target = (path.split("\t")[0] for path in (file.source_file, file.target_file))
    if target == NOWHERE:
        raise BundleError(f"{name}: {_stripped(source)} is deleted: a patch cannot delete a file; leave it empty")
    if source != NOWHERE and _stripped(source) != _stripped(target):
        raise BundleError(
            f"{name}: {_stripped(source)} is renamed to {_stripped(target)}: a patch cannot rename a file"
        )
    if not file:
        raise BundleError(f"{name}: {_stripped(target)} has no hunk: modes and binary files cannot be patched")
    return FileDiff(path=_stripped(target), creates=source == NOWHERE, hunks=tuple(map(_hunk, file)))


def _stripped(path: str) -> str:
    return path[2:] if path.startswith(("a/", "b/")) else path


def _hunk(hunk: Hunk) -> HunkDiff:
    old: list[str] = []
    new: list[str] = []
    last: list[list[str]] = []
    for line in hunk:
        if line.line_type == "\\":
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = {"-": [old], "+": [new]}.get(line.line_type, [old, new])
        for side in last:
            side.append(line.value)
    header = f"@@ -{hunk.source_start},{hunk.source_length} +{hunk.target_start},{hunk.target_length} @@"
    return HunkDiff(header=header, start=hunk.source_start, old=tuple(old), new=tuple(new))


def _show(line: str | None) -> str:
    return "past the end of the file" if line is None else repr(line[:100])
