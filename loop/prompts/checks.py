"""Correctness prompts: varied, each as one user would send it, answered greedily and compared word for word."""

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from loop.prompts import adversarial, cjk, coding, degenerate, long_context, mathematics, normal
from loop.prompts.dice import Dice
from loop.prompts.store import Prompt

SHORT_KINDS: dict[str, tuple[Callable[[Dice], str], ...]] = {
    "normal": normal.KINDS,
    "code": coding.KINDS,
    "math": mathematics.KINDS,
    "degenerate": degenerate.KINDS,
    "adversarial": adversarial.KINDS,
    "cjk": cjk.KINDS,
}
CATEGORIES = ("normal", "code", "math", "long_context", "degenerate", "adversarial", "cjk")


class Scale(NamedTuple):
    """How long documents and answers are."""

    max_new_tokens: Mapping[str, int]
    """By category."""
    min_document_words: int
    max_document_words: int
    """Before the question and the hidden facts are added."""


# Long enough to show a fault, short enough that near-ties do not decide: one flip costs all the words after it.
FULL = Scale(
    {"normal": 128, "code": 192, "math": 256, "long_context": 64, "degenerate": 48, "adversarial": 96, "cjk": 128},
    min_document_words=1500,
    max_document_words=2700,
)
SMALL = Scale(dict.fromkeys(CATEGORIES, 32), min_document_words=250, max_document_words=400)


def correctness(seed: str, counts: Mapping[str, int], scale: Scale = FULL) -> tuple[Prompt, ...]:
    """`counts` prompts of each category. Another seed gives other prompts of the same distribution.

    A prompt depends on the seed, its category and its place there, so a larger count only adds prompts.
    """
    unknown = sorted(set(counts) - set(CATEGORIES))
    if unknown:
        raise ValueError(f"no such category: {', '.join(unknown)}; known: {', '.join(CATEGORIES)}")
    seen: set[str] = set()
    prompts: list[Prompt] = []
    for category in CATEGORIES:
        for index in range(counts.get(category, 0)):
            text = draw_new(Dice("check", seed, category, index), category, index, scale, seen)
            seen.add(text)
            prompts.append(
                Prompt(
                    # The digest keeps ids apart where two sets are sent together.
                    id=f"{category}-{index:03d}-{hashlib.sha256(text.encode()).hexdigest()[:6]}",
                    category=category,
                    text=text,
                    max_new_tokens=scale.max_new_tokens[category],
                )
            )
    return tuple(prompts)


def draw_new(dice: Dice, category: str, index: int, scale: Scale, seen: set[str]) -> str:
    """A text that is not in `seen`. Kinds take turns, so that each is in every set."""
    for attempt in range(1000):
        text = write_text(dice.fork(attempt), category, index, scale)
        if text not in seen:
            return text
    raise ValueError(f"cannot make {index + 1} different prompts of the category {category}")


def write_text(dice: Dice, category: str, index: int, scale: Scale) -> str:
    """`index` chooses the kind within the category; the length is drawn from `scale` for `long_context` only."""
    if category == "long_context":
        write_document = long_context.KINDS[index % len(long_context.KINDS)]
        return write_document(dice, dice.number(scale.min_document_words, scale.max_document_words))
    kinds = SHORT_KINDS[category]
    return kinds[index % len(kinds)](dice)
