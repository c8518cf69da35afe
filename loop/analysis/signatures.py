"""Signatures: what a layer does, as the sequence of its kernels, and how far two such sequences are apart."""

from collections.abc import Sequence

from loop.analysis.names import simplify
from loop.analysis.work import Work

Signature = tuple[tuple[str, str], ...]
"""(category, simplified name) of each kernel, in order."""


def sign(work: Work, rows: Sequence[int]) -> Signature:
    """The signature of some of the work."""
    return tuple((work.category[row], simplify(work.name[row])) for row in rows)


def distance(one: Signature, other: Signature) -> float:
    """Levenshtein's, over the longer length: 0 for equal sequences, 1 for those that share nothing."""
    if one == other:
        return 0.0
    before = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        now = [row]
        for column, right in enumerate(other, 1):
            now.append(min(before[column] + 1, now[-1] + 1, before[column - 1] + (left != right)))
        before = now
    return before[-1] / max(len(one), len(other))
