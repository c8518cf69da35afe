"""Functions over whole numbers, drawn as programs and written in one of several languages."""

import functools
from typing import NamedTuple

from loop.prompts.dice import Dice
from loop.prompts.grammar import load_data


class Language(NamedTuple):
    """How programs are spelled: `str.format` templates, but for `name`, `comment` (what begins one) and `close`."""

    name: str
    comment: str
    head: str
    parameter: str
    declare: str
    assign: str
    loop: str
    check: str
    otherwise: str
    close: str
    """What ends a block; empty where indentation does."""
    result: str


@functools.cache
def load_languages() -> tuple[Language, ...]:
    """In the order of `data/languages.toml`, which the draws depend on."""
    return tuple(Language(**language) for language in load_data("languages")["language"])


def find_language(name: str) -> Language:
    """Raises StopIteration if no language has exactly this name."""
    return next(language for language in load_languages() if language.name == name)


def load_nouns() -> list[str]:
    """Names of variables, tables and services. Shared: callers do not change the list."""
    nouns: list[str] = load_data("code")["noun"]
    return nouns


class Function(NamedTuple):
    """Source text without a last line end, and how many whole numbers it is called with."""

    name: str
    num_parameters: int
    text: str


def write_expression(dice: Dice, names: list[str]) -> str:
    """The same spelling in every language here; divides by positive constants only, and bounds every product."""
    left, right = dice.pick(names), dice.pick((dice.pick(names), str(dice.number(2, 40))))
    sign = dice.pick("+-*")
    text = f"{left} {sign} {right}"
    if sign == "*" or dice.chance(0.3):
        return f"({text}) % {dice.number(3, 97)}"
    return f"{text} {dice.pick('+-')} {dice.number(1, 30)}" if dice.chance(0.3) else text


def write_block(dice: Dice, language: Language, names: list[str], counters: str, size: int) -> list[str]:
    """About `size` statements over the variables `names`, inside the loops that count `counters`."""
    depth = len(counters) + 1
    pad = "    " * depth
    scope = [*names, *counters.replace(" ", "")]
    lines: list[str] = []
    while size > 0:
        size -= 1
        draw = dice.number(0, 9)
        if draw < 3 or size < 2 or depth > 3:
            value = write_expression(dice, scope)
            lines.append(pad + language.assign.format(name=dice.pick(names), sign=dice.pick("+-"), value=value))
            continue
        inner = dice.number(1, min(size, 4))
        size -= inner
        if draw < 6:
            test = f"{dice.pick(scope)} {dice.pick(('<', '>', '<=', '==', '!='))} {write_expression(dice, scope)}"
            lines.append(pad + language.check.format(test=test))
            # A blank stands for a level that counts nothing.
            lines += write_block(dice, language, names, counters + " ", inner)
            if dice.chance(0.4):
                lines.append(pad + language.otherwise.format())
                lines += write_block(dice, language, names, counters + " ", 1)
        else:
            counter = "ijk"[len(counters)]
            lines.append(pad + language.loop.format(name=counter, low=dice.number(0, 3), high=dice.number(4, 20)))
            lines += write_block(dice, language, names, counters + counter, inner)
        lines += [pad + language.close] if language.close else []
    return lines


def name_things(dice: Dice, count: int) -> list[str]:
    """Distinct variable names."""
    endings = ("", "", "", "", "_a", "_b", "_max", "_min", "_new", "_old")
    return [noun + dice.pick(endings) for noun in dice.some(load_nouns(), count)]


def write_function(dice: Dice, language: Language, size: int) -> Function:
    """A function with about `size` statements that always ends and never divides by zero."""
    parameters = name_things(dice, dice.number(1, 3))
    variables = [f"{noun}_{dice.number(0, 9)}" for noun in dice.some(load_nouns(), 3)]
    name = f"{dice.pick(load_data('code')['verb'])}_{dice.pick(load_nouns())}"
    head = language.head.format(name=name, parameters=", ".join(language.parameter.format(name=p) for p in parameters))
    if language.name == "Rust":  # parameters are changed in the body
        head = head.replace("(", "(mut ", 1).replace(", ", ", mut ")
    lines = [head]
    lines += [f"    {language.declare.format(name=v, value=dice.number(0, 50))}" for v in variables]
    lines += write_block(dice, language, [*parameters, *variables], "", size)
    lines.append("    " + language.result.format(value=f"{dice.pick(variables)} + {dice.pick(parameters)}"))
    lines += [language.close] if language.close else []
    return Function(name, len(parameters), "\n".join(lines))
