"""How far two texts agree from their beginning.

Source: the seed task's whitespace-token prefix match, and its two known holes closed: an unspaced text (CJK) would be
one token, so it is matched by character; two empty texts agree.
"""

from collections.abc import Sequence

SPACELESS_CHARACTERS = 24
"""Longer runs without any space are not words: match them by character."""


def prefix_match(reference: str, candidate: str) -> float:
    """The share of the reference's units that the candidate repeats from the start, in [0, 1]."""
    units = _units(reference)
    if not units:
        return 1.0 if not candidate.split() else 0.0
    other = candidate.split() if isinstance(units, list) else candidate.strip()  # the reference chooses the units
    return common_prefix(units, other) / len(units)


def common_prefix(a: Sequence[object] | str, b: Sequence[object] | str) -> int:
    """The number of leading items that are equal."""
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length


def first_difference(reference: str, candidate: str, *, context: int = 24) -> str:
    """Where two texts part, with a few characters around it, for a report."""
    at = common_prefix(reference, candidate)
    start = max(0, at - context)
    return f"at character {at}: {reference[start : at + context]!r} became {candidate[start : at + context]!r}"


def _units(text: str) -> list[str] | str:
    """Whitespace tokens, or the characters of a text whose words are not separated by spaces."""
    tokens = text.split()
    if tokens and max(len(token) for token in tokens) > SPACELESS_CHARACTERS:
        return text.strip()
    return tokens
