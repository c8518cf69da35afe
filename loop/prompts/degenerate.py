"""Inputs that hardly mean anything: one character, blanks, noise, one word a hundred times. Never the empty text."""

import base64
from collections.abc import Callable

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar

GRAMMAR = Grammar("lexicon", "normal")
PUNCTUATION = "!?.,;:-_/\\|()[]{}<>*&^%$#@~`'\"+="
# Blank to the eye: spaces of other widths, zero-width marks, the empty Braille cell, the Hangul filler.
INVISIBLE = "\u00a0\u2000\u2003\u2007\u2009\u200a\u200b\u200c\u200d\u202f\u205f\u2060\u2800\u3000\u3164\ufeff"


def write_character(dice: Dice) -> str:
    """One code point: ASCII, Latin-1, Greek, Cyrillic, a Chinese character, or an arrow or operator."""
    low, high = dice.pick(
        ((0x21, 0x7E), (0xA1, 0xFF), (0x391, 0x3A9), (0x410, 0x44F), (0x4E00, 0x9FA5), (0x2190, 0x22FF))
    )
    return chr(dice.number(low, high))


def write_word(dice: Dice) -> str:
    """One entry of a word list, bare or followed by a mark, a blank or a line end."""
    slot = dice.pick(("thing", "adjective", "animal", "city", "food", "first_name", "month"))
    return GRAMMAR.draw(dice, slot) + dice.pick(("", "", ".", "?", " ", "\n"))


def write_repeated_token(dice: Dice) -> str:
    """20 to 300 times; without a separator the copies run into one word."""
    word = dice.pick((GRAMMAR.draw(dice, "thing"), dice.letters(dice.number(1, 4)), str(dice.number(0, 999)), "the"))
    return dice.pick((" ", "", "\n", ", ")).join([word] * dice.number(20, 300))


def write_repeated_sentence(dice: Dice) -> str:
    """One request 5 to 20 times, which invites a model to repeat itself as well."""
    sentence = GRAMMAR.draw(dice, dice.pick(("question", "list_request", "comparison")))
    return dice.pick((" ", "\n", "\n\n")).join([sentence] * dice.number(5, 20))


def write_blanks(dice: Dice) -> str:
    """Spaces, tabs and line ends only; nothing is left after a `strip()`."""
    return "".join(dice.pick(" \t\n ") * dice.number(1, 9) for _ in range(dice.number(2, 40)))


def write_invisible(dice: Dice) -> str:
    """3 to 60 characters that show nothing, of which `str.strip` removes only some."""
    return dice.letters(dice.number(3, 60), INVISIBLE)


def write_long_word(dice: Dice) -> str:
    """100 to 500 syllables without a break: a word that no vocabulary holds."""
    syllables = ("ta", "ne", "ri", "mo", "lu", "ska", "ver", "ung", "keit", "is", "tro", "phe", "gno", "ble", "ism")
    return "".join(dice.pick(syllables) for _ in range(dice.number(100, 500)))


def write_punctuation(dice: Dice) -> str:
    """Runs of 1 to 4 equal ASCII marks, without blanks."""
    return "".join(dice.pick(PUNCTUATION) * dice.number(1, 4) for _ in range(dice.number(1, 120)))


def write_numbers(dice: Dice) -> str:
    """20 to 200 numbers, in even steps or without any rule, and no task."""
    start, step = dice.number(0, 9999), dice.number(-7, 90)
    values = [start + step * i for i in range(dice.number(20, 200))]
    if dice.chance(0.5):
        values = [dice.number(0, 10**6) for _ in values]
    return dice.pick((", ", " ", "\n", ";")).join(map(str, values))


def write_base64(dice: Dice) -> str:
    """60 to 600 random bytes, which decode to nothing readable."""
    data = bytes(dice.number(0, 255) for _ in range(dice.number(60, 600)))
    return base64.b64encode(data).decode()


def write_hex(dice: Dice) -> str:
    """Up to 20 lines of a dump of 16 bytes a line, without the column of text."""
    lines = [
        f"{16 * i:08x}  {' '.join(dice.letters(2, '0123456789abcdef') for _ in range(16))}"
        for i in range(dice.number(2, 20))
    ]
    return "\n".join(lines)


def write_keyboard_noise(dice: Dice) -> str:
    """5 to 60 groups of up to 12 keys, any key after any other."""
    return " ".join(dice.letters(dice.number(1, 12), "asdfjkl;qwertyuiopzxcvbnm,./") for _ in range(dice.number(5, 60)))


def write_digits(dice: Dice) -> str:
    """One number of 30 to 400 digits, which may begin with 0."""
    return dice.letters(dice.number(30, 400), "0123456789")


def write_brackets(dice: Dice) -> str:
    """10 to 200 levels around almost nothing; up to two closing brackets are missing."""
    pair = dice.pick(("()", "[]", "{}", "<>"))
    depth = dice.number(10, 200)
    return (
        pair[0] * depth + dice.pick(("", "x", " ", GRAMMAR.draw(dice, "thing"))) + pair[1] * (depth - dice.number(0, 2))
    )


def write_alternation(dice: Dice) -> str:
    """2 or 3 words in turn, 15 to 90 times."""
    words = (GRAMMAR.draw(dice, "animal"), GRAMMAR.draw(dice, "food"), GRAMMAR.draw(dice, "city"))
    return " ".join(words[: dice.number(2, 3)] * dice.number(15, 90))


def write_cut_sentence(dice: Dice) -> str:
    """A sentence that breaks off, often inside a word."""
    sentence = GRAMMAR.draw(dice, dice.pick(("question", "story", "list_request", "roleplay")))
    return sentence[: dice.number(5, max(6, len(sentence) // 2))]


KINDS: tuple[Callable[[Dice], str], ...] = (
    write_character,
    write_repeated_token,
    write_blanks,
    write_long_word,
    write_punctuation,
    write_numbers,
    write_base64,
    write_repeated_sentence,
    write_invisible,
    write_word,
    write_hex,
    write_keyboard_noise,
    write_digits,
    write_brackets,
    write_alternation,
    write_cut_sentence,
)
