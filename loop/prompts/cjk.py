"""Chinese, Japanese and Korean requests, some of them without a single space, some in several scripts."""

from collections.abc import Callable
from functools import partial

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar

GRAMMAR = Grammar("lexicon", "cjk")


def ask(slot: str, dice: Dice) -> str:
    """The slot comes first, so that `partial` turns a word list into a kind of prompt."""
    return GRAMMAR.draw(dice, slot)


def write_unspaced_korean(dice: Dice) -> str:
    """Korean is written with spaces; without them the text still reads, and tokenizes quite differently."""
    return GRAMMAR.draw(dice, "ko_task").replace(" ", "")


def write_long_unspaced(dice: Dice) -> str:
    """One run of text over several hundred characters without a space or a line end."""
    language = dice.pick(("zh", "ja"))
    passages = "".join(GRAMMAR.draw(dice, f"{language}_passage") for _ in range(dice.number(2, 4)))
    return passages + GRAMMAR.draw(dice, f"{language}_closing")


KINDS: tuple[Callable[[Dice], str], ...] = (
    partial(ask, "zh_ask"),
    partial(ask, "ja_ask"),
    partial(ask, "ko_ask"),
    partial(ask, "mixed"),
    partial(ask, "zh_task"),
    partial(ask, "ja_task"),
    partial(ask, "ko_task"),
    partial(ask, "zh_write"),
    partial(ask, "ja_write"),
    write_unspaced_korean,
    partial(ask, "tw_ask"),
    write_long_unspaced,
    partial(ask, "ko_write"),
    partial(ask, "zh_math"),
    partial(ask, "mixed"),
)
