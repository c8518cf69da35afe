"""Diffs: what was made by a tool applies, and nothing else does."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.diffs import apply_diff, parse_diff
from loop.errors import BundleError

OLD = "".join(f"line {number}\n" for number in range(1, 21))
LINES = st.lists(st.text(alphabet="ab-+@ \t\r\u2028\x0c\\é", max_size=4), max_size=12)
END = st.sampled_from(["", "\n"])


def diff_of(old: str, new: str, path: str = "srt/x.py", *, num_context: int = 3) -> str:
    """A unified diff as `git diff` writes it."""
    lines = difflib.unified_diff(_lines(old), _lines(new), f"a/{path}", f"b/{path}", n=num_context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """With their ends; a line ends at a line feed."""
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]


def refusal(diff: str, text: str) -> str:
    """What is said of a diff that does not apply."""
    with pytest.raises(BundleError) as caught:
        _ = [apply_diff(file, text, name="p.diff") for file in parse_diff(diff, name="p.diff")]
    return caught.value.what


@given(LINES, LINES, END, END, st.integers(0, 3))
def test_a_diff_turns_the_old_text_into_the_new_one(
    old: list[str], new: list[str], old_end: str, new_end: str, num_context: int
) -> None:
    """Whatever is in the lines, with and without a newline at the end, and with any context."""
    before = "\n".join(old) + (old_end if old else "")
    after = "\n".join(new) + (new_end if new else "")
    if before == after:
        return

    (file,) = parse_diff(diff_of(before, after, num_context=num_context), name="p.diff")

    assert after == apply_diff(file, before, name="p.diff")


@given(LINES, LINES, LINES)
def test_a_diff_of_another_text_is_refused_or_changes_only_its_own_lines(
    old: list[str], new: list[str], other: list[str]
) -> None:
    """It never raises anything but a refusal."""
    before, after, elsewhere = ("".join(f"{line}\n" for line in lines) for lines in (old, new, other))
    if before == after:
        return
    (file,) = parse_diff(diff_of(before, after), name="p.diff")

    try:
        made = apply_diff(file, elsewhere, name="p.diff")
    except BundleError:
        return

    assert len(made) - len(elsewhere) == len(after) - len(before)


def test_a_hunk_that_does_not_apply_is_named_with_the_first_line_that_differs() -> None:
    """A line more at the top is an offset, and no offset is allowed."""
    diff = diff_of(OLD, OLD.replace("line 10\n", "line ten\n"))

    said = refusal(diff, "another\n" + OLD)

    assert (
        "p.diff: srt/x.py: hunk @@ -7,7 +7,7 @@ does not apply: line 7 should be 'line 7\\n', it is 'line 6\\n'" == said
    )


def test_a_file_that_ends_too_early_is_named() -> None:
    """A hunk beyond its end."""
    diff = diff_of(OLD, OLD.replace("line 10\n", "line ten\n"))

    assert "line 7 should be 'line 7\\n', it is past the end of the file" in refusal(diff, "".join(_lines(OLD)[:6]))


def test_an_insertion_beyond_the_end_is_refused() -> None:
    """Without context nothing else would notice."""
    diff = "--- a/x\n+++ b/x\n@@ -9,0 +10,1 @@\n+new\n"

    assert "does not apply: the file ends at line 2" in refusal(diff, "one\ntwo\n")


def test_a_newline_that_is_missing_counts() -> None:
    """`line` and `line` without a newline are different lines."""
    diff = diff_of("one\ntwo", "one\n2\n")

    assert "should be 'two', it is 'two\\n'" in refusal(diff, "one\ntwo\n")


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        ("", "p.diff is not a unified diff: it names no file"),
        ("hello\n", "p.diff is not a unified diff: it names no file"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n", "p.diff is not a unified diff: Hunk is shorter than expected"),
        ("--- a/x\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-one\n", "x is deleted: a patch cannot delete a file"),
        ("--- a/x\n+++ b/y\n@@ -1,1 +1,1 @@\n-one\n+two\n", "x is renamed to y: a patch cannot rename a file"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "x has no hunk"),
    ],
)
def test_what_a_patch_cannot_do_is_said(diff: str, expected: str) -> None:
    """By what it is."""
    assert expected in refusal(diff, "one\n")


def test_overlapping_hunks_are_refused() -> None:
    """The second one would see what the first has made."""
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n@@ -2,1 +2,1 @@\n-two\n+zwei\n"

    assert "hunk @@ -2,1 +2,1 @@ begins inside the hunk before it" in refusal(diff, "one\ntwo\n")
