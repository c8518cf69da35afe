"""Generated paragraphs and documents about one domain at a time: a harbour, a farm, a railway, ..."""

from collections.abc import Callable

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar, load_data

LEXICON = Grammar("lexicon", "passages")


def choose_domain(dice: Dice) -> Grammar:
    """The grammar of documents with the words of a drawn domain."""
    domains = load_data("domains")
    return LEXICON.extend(domains[dice.pick(sorted(domains))])


def write_sentence(dice: Dice, grammar: Grammar) -> str:
    """About one in five is a whole aside; the others are a clause and a tail, most with a lead before them."""
    if dice.chance(0.18):
        return grammar.draw(dice, "aside")
    clause, tail = grammar.draw(dice, "clause"), grammar.draw(dice, "tail")
    if dice.chance(0.6):
        return f"{grammar.draw(dice, 'lead')}, {clause}{tail}."
    return f"{clause[:1].upper()}{clause[1:]}{tail}."


def write_paragraph(dice: Dice, grammar: Grammar, num_sentences: int) -> str:
    """One line; its sentences share the domain of `grammar`, not a thread."""
    return " ".join(write_sentence(dice, grammar) for _ in range(num_sentences))


def write_passage(dice: Dice) -> str:
    """One paragraph of a drawn domain: 40 to 120 words or so."""
    return write_paragraph(dice, choose_domain(dice), dice.number(3, 6))


def write_section(dice: Dice) -> str:
    """A heading and some paragraphs of a drawn domain: 150 to 500 words or so."""
    grammar = choose_domain(dice)
    paragraphs = [write_paragraph(dice, grammar, dice.number(3, 7)) for _ in range(dice.number(2, 5))]
    return "\n\n".join([f"## {grammar.draw(dice, 'heading')}", *paragraphs])


def count_words(text: str) -> int:
    """Whitespace-separated words. No common tokenizer makes fewer tokens of them than this."""
    return len(text.split())


def write_until(num_words: int, first: list[str], write_next: Callable[[], str], separator: str = "\n\n") -> str:
    """`first`, then parts from `write_next`, until there are at least `num_words` words."""
    parts = list(first)
    total = sum(map(count_words, parts))
    while total < num_words:
        parts.append(write_next())
        total += count_words(parts[-1])
    return separator.join(parts)
