"""Diffs are applied exactly or not at all."""

import difflib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.diffs import parse_diff
from loop.errors import BundleError

BEFORE = "import os\n\n\ndef slow():\n    return 1\n\n\ndef other():\n    return 2\n"
AFTER = BEFORE.replace("return 1", "return 3").replace("import os\n", "import os\nimport sys\n")
LINES = st.lists(st.sampled_from(["a\n", "b\n", "  c\n", "\n", "é\u2028x\n", "d\r\n", "-- x\n", "++ y\n"]), max_size=12)
ENDS = st.sampled_from(["", "last"])


def diff_of(before: str, after: str, path: str = "gadget/core.py", context: int = 3) -> str:
    """A unified diff as git writes it."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context))


def split(text: str) -> list[str]:
    """Lines end at LF alone."""
    return re.findall(r"[^\n]*\n|[^\n]+\Z", text)


def applied(diff: str, text: str) -> str:
    """The text after the only file of the diff."""
    (change,) = parse_diff(diff.encode(), "gadget")
    return change.apply(text)


def test_a_diff_gives_what_it_was_made_from() -> None:
    """Its path starts below the package, whether or not the package is named."""
    (named,) = parse_diff(diff_of(BEFORE, AFTER).encode(), "gadget")
    (below,) = parse_diff(diff_of(BEFORE, AFTER, "core.py").encode(), "gadget")

    assert ("core.py", "core.py") == (named.path, below.path)
    assert [AFTER, AFTER] == [named.apply(BEFORE), below.apply(BEFORE)]


@given(before=LINES, after=LINES, ends=st.tuples(ENDS, ENDS), context=st.integers(0, 4))
def test_any_diff_gives_what_it_was_made_from(
    before: list[str], after: list[str], ends: tuple[str, str], context: int
) -> None:
    """Also without a line end at the end, and with characters that other tools take for line ends."""
    old, new = "".join(before) + ends[0], "".join(after) + ends[1]
    lines = difflib.unified_diff(split(old), split(new), "a/core.py", "b/core.py", n=context)
    made = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    if old and new and old != new:
        assert new == applied("".join(made), old)


def test_a_hunk_that_does_not_apply_is_named_with_the_line() -> None:
    """No fuzz, no offset: what was measured was made for exactly this file."""
    moved = "# a new first line\n" + BEFORE

    with pytest.raises(
        BundleError, match=r"hunk @@ -1,8 @@ does not apply: line 1 should be 'import os', it is '# a new"
    ):
        applied(diff_of(BEFORE, AFTER), moved)


def test_a_file_that_ends_too_early_is_said_to() -> None:
    """The diff expects lines that are not there."""
    with pytest.raises(BundleError, match="the file ends before it"):
        applied(diff_of(BEFORE, AFTER), BEFORE.partition("    return 1")[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it changes no file"),
        (b"hello\n", "it changes no file"),
        (b"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-a\n", "not a unified diff"),
        (b"\xff\xfe", "not UTF-8"),
        (b"--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "it removes x.py"),
    ],
)
def test_what_is_no_patch_is_refused(content: bytes, message: str) -> None:
    """Text files are changed or added; nothing else."""
    with pytest.raises(BundleError, match=message):
        list(parse_diff(content, "gadget"))
