"""Texts from templates with slots, filled from the word lists in `data/*.toml`."""

import functools
import importlib.resources
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Self

from loop.prompts.dice import Dice

SLOT = re.compile(r"\{\{(\w+|\d+\.\.\d+)(?:#(\w+))?\}\}")
ARTICLE = re.compile(r"\b([Aa])\(n\) (?=(\W*)(\w))")
# "a university" and "an hour" are rare enough to keep out of the lists.
VOWELS = frozenset("aeiouAEIOU")


@functools.cache
def load_data(name: str) -> dict[str, Any]:
    """The parsed `data/<name>.toml`. Shared: callers do not change it."""
    text = importlib.resources.files("loop.prompts").joinpath("data", f"{name}.toml").read_bytes().decode()
    return tomllib.loads(text)


class Grammar:
    """Lists of templates by slot name.

    Inside a template:

    - `{{city}}` is a drawn entry of the list `city`, filled in turn; `{{City}}` the same with a capital first letter;
    - `{{3..40}}` is a whole number, both ends included;
    - `{{city#a}}` is the same text wherever the label `a` returns, and differs from `{{city#b}}`;
    - `a(n) ` becomes `a ` or `an ` by what follows.

    Double braces, because templates of code and JSON are full of single ones.
    """

    def __init__(self, *files: str, lists: Mapping[str, Sequence[str]] | None = None) -> None:
        """The lists of `data/<file>.toml`, a later file replacing a list of an earlier one, and then of `lists`."""
        self._files = files
        self._added = lists or {}

    @functools.cached_property
    def _lists(self) -> Mapping[str, Sequence[str]]:
        # Read on first use: commands that only read stored prompts do not pay for the word lists.
        return {slot: items for file in self._files for slot, items in load_data(file).items()} | dict(self._added)

    def extend(self, lists: Mapping[str, Sequence[str]]) -> Self:
        """Another grammar with these lists by slot name; they win over equal names, and this one stays as it is."""
        return type(self)(*self._files, lists={**self._added, **lists})

    def draw(self, dice: Dice, slot: str, bound: dict[tuple[str, str], str] | None = None) -> str:
        """A filled entry of the list `slot`."""
        return self.fill(dice, dice.pick(self._lists[slot]), bound)

    def fill(self, dice: Dice, template: str, bound: dict[tuple[str, str], str] | None = None) -> str:
        """`template` with every slot filled. Pass one `bound` to several calls to share their labels."""
        labels = {} if bound is None else bound
        text = SLOT.sub(lambda match: self._fill_slot(dice, match[1], match[2], labels), template)
        return ARTICLE.sub(lambda match: match[1] + ("n " if match[3] in VOWELS else " "), text)

    def _fill_slot(self, dice: Dice, slot: str, label: str | None, bound: dict[tuple[str, str], str]) -> str:
        name = slot if ".." in slot or slot in self._lists else slot[:1].lower() + slot[1:]
        if label is None:
            text = self._draw_slot(dice, name, bound)
        elif (name, label) in bound:
            text = bound[name, label]
        else:
            taken = {value for (other, _), value in bound.items() if other == name}
            # Twenty draws: a short list may hold fewer entries than labels, and then a repeat is right.
            for _ in range(20):
                text = self._draw_slot(dice, name, bound)
                if text not in taken:
                    break
            bound[name, label] = text
        return text if name == slot else text[:1].upper() + text[1:]

    def _draw_slot(self, dice: Dice, name: str, bound: dict[tuple[str, str], str]) -> str:
        if ".." in name:
            low, high = name.split("..")
            return str(dice.number(int(low), int(high)))
        return self.draw(dice, name, bound)
