"""Everyday requests: questions, e-mails, lists, role plays, several turns of a conversation."""

from collections.abc import Callable
from functools import partial

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar
from loop.prompts.passages import write_passage

GRAMMAR = Grammar("lexicon", "normal")


def ask(slot: str, dice: Dice) -> str:
    """The slot comes first, so that `partial` makes a kind of it; a template's `passage` is another text every time."""
    return GRAMMAR.extend({"passage": (write_passage(dice),)}).draw(dice, slot)


KINDS: tuple[Callable[[Dice], str], ...] = tuple(
    partial(ask, slot)
    for slot in (
        "question",
        "explanation",
        "summary",
        "email",
        "list_request",
        "roleplay",
        "turns",
        "rewrite",
        "comparison",
        "extraction",
        "story",
    )
)
