"""How far two texts agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.matching import SPACELESS_CHARACTERS, common_prefix, first_difference, prefix_match

TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(["a", "b", "the", "cat", "\n", "世界"]), max_size=12).map(" ".join),
    st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x4E20), max_size=60),
)
SENTENCE = "one two three four five six seven eight nine ten"
CJK = "".join(chr(0x4E00 + number) for number in range(40))


@given(TEXTS)
def test_a_text_matches_itself(text: str) -> None:
    """Empty, spaced or not."""
    assert 1.0 == prefix_match(text, text)


@given(TEXTS, TEXTS)
def test_a_match_is_a_share(reference: str, candidate: str) -> None:
    """Never below 0, never above 1."""
    assert 0.0 <= prefix_match(reference, candidate) <= 1.0


@given(TEXTS.filter(str.strip), TEXTS)
def test_more_text_after_the_reference_costs_nothing(reference: str, more: str) -> None:
    """It is the reference that must be kept; its length is another gate's business."""
    assert 1.0 == prefix_match(reference, f"{reference} {more}")


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=20), st.data())
def test_the_share_is_the_words_kept_from_the_start(words: list[str], data: st.DataObject) -> None:
    """After the first wrong word nothing counts, however right."""
    kept = data.draw(st.integers(0, len(words) - 1))
    candidate = [*words[:kept], "WRONG", *words[kept + 1 :]]

    assert kept / len(words) == prefix_match(" ".join(words), " ".join(candidate))


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        ("", "", 1.0),
        ("", "  \n", 1.0),
        ("", "words", 0.0),
        ("words", "", 0.0),
        (SENTENCE, SENTENCE.replace("ten", "TEN"), 0.9),
        (SENTENCE, SENTENCE.replace(" ", "\n"), 1.0),
        (SENTENCE, "one two", 0.2),
        ("a b", "ab", 0.0),
    ],
)
def test_known_pairs(reference: str, candidate: str, expected: float) -> None:
    """Two empty texts agree; white space of any kind parts words."""
    assert expected == prefix_match(reference, candidate)


def test_text_without_spaces_is_matched_by_character() -> None:
    """As one word, a single wrong character would be all or nothing."""
    assert 0.75 == prefix_match(CJK, CJK[:30] + "x" + CJK[31:])
    assert 0.5 == prefix_match(CJK, CJK[:20])


def test_a_text_is_spaceless_only_when_longer_than_a_word() -> None:
    """At the limit it is a word, beyond it characters."""
    word, run = "x" * SPACELESS_CHARACTERS, "x" * (SPACELESS_CHARACTERS + 1)

    assert 0.0 == prefix_match(word, word[:-1] + "y")
    assert 24 / 25 == prefix_match(run, run[:-1] + "y")


@given(st.text(), st.text())
def test_a_common_prefix_is_common_and_the_longest(a: str, b: str) -> None:
    """And symmetric."""
    length = common_prefix(a, b)

    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or length == len(a) == len(b)
    assert length == common_prefix(b, a)


def test_the_first_difference_is_shown_with_its_surroundings() -> None:
    """The place, and both texts around it."""
    expected = "at character 4: 'one two three' became 'one zwei three'"

    assert expected == first_difference("one two three", "one zwei three")


def test_a_difference_far_into_a_text_is_shown_alone() -> None:
    """A few characters on both sides, not the whole text."""
    long = "x" * 1000

    shown = first_difference(long + "a", long + "b", context=4)

    assert "at character 1000: 'xxxxa' became 'xxxxb'" == shown
