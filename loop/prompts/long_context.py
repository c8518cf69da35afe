"""Long documents of several forms, with a question about one fact somewhere inside them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar, load_data
from loop.prompts.passages import choose_domain, count_words, write_paragraph, write_sentence, write_until

GRAMMAR = Grammar("lexicon").extend({"letters": ("ABK", "QTR", "MZX", "LVN", "HPD", "WSC")})


class Needle(NamedTuple):
    """What is hidden in a document, and what is asked about it."""

    facts: tuple[str, ...]
    """The fact that is asked for, and decoys about other subjects, in the order of the text."""
    question: str


def draw_needle(dice: Dice) -> Needle:
    """One to four facts of one form, each about another subject; the question is about any of them."""
    form: dict[str, Any] = dice.pick(load_data("needles")["needle"])
    # A dict, because two equal subjects would give the question two answers.
    subjects = list(dict.fromkeys(GRAMMAR.fill(dice, form["subject"]) for _ in range(dice.number(2, 4))))
    facts = [GRAMMAR.extend({"subject": (subject,)}).fill(dice, form["fact"]) for subject in subjects]
    wanted = dice.pick(subjects)
    return Needle(tuple(facts), GRAMMAR.extend({"subject": (wanted,)}).fill(dice, form["question"]))


def hide(dice: Dice, parts: Sequence[str], facts: Sequence[str], separator: str) -> str:
    """`parts` joined, with the facts at drawn places, in a drawn order."""
    hidden = list(parts)
    for fact in facts:
        hidden.insert(dice.number(0, len(hidden)), fact)
    return separator.join(hidden)


def pose(dice: Dice, document: str, question: str) -> str:
    """The question after the document, before it, or both."""
    place = dice.number(0, 3)
    if place == 0:
        return f"{question} The answer is in this text:\n\n{document}"
    if place == 1:
        return f"I will ask: {question}\n\n{document}\n\nNow answer: {question}"
    return f"{document}\n\n{dice.pick(('Question: ', 'Using only the text above: ', ''))}{question} Answer briefly."


def fill_document(dice: Dice, num_words: int, write_part: Callable[[], str], separator: str) -> str:
    """At least `num_words` words, not counting the question and the facts, which are parts of their own."""
    needle = draw_needle(dice)
    parts = write_until(num_words, [], write_part, "\0").split("\0")
    return pose(dice, hide(dice, parts, needle.facts, separator), needle.question)


def write_report(dice: Dice, num_words: int) -> str:
    """Paragraphs; every fact is a sentence inside one."""
    grammar = choose_domain(dice)
    needle = draw_needle(dice)
    paragraphs = write_until(num_words, [], lambda: write_paragraph(dice, grammar, dice.number(4, 8)), "\0").split("\0")
    for fact in needle.facts:
        index = dice.number(0, len(paragraphs) - 1)
        paragraphs[index] += f" {fact} {write_sentence(dice, grammar)}"
    title = grammar.draw(dice, "title")
    return pose(dice, "\n\n".join([title, *paragraphs]), needle.question)


def write_sections(dice: Dice, num_words: int) -> str:
    """Numbered sections, each about something else."""
    numbers = iter(range(1, 10_000))

    def write_part() -> str:
        grammar = choose_domain(dice)
        return f"{next(numbers)}. {grammar.draw(dice, 'heading')}\n{write_paragraph(dice, grammar, dice.number(3, 6))}"

    return fill_document(dice, num_words, write_part, "\n\n")


def write_log(dice: Dice, num_words: int) -> str:
    """Log lines with times that only grow."""
    clock = dice.number(0, 40_000)

    def write_part() -> str:
        nonlocal clock
        clock += dice.number(1, 40)
        stamp = f"{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}.{dice.number(0, 999):03d}"
        level = dice.pick(("INFO", "INFO", "DEBUG", "WARN", "ERROR"))
        event = GRAMMAR.fill(dice, "{{code_word}}: request {{1000..99999}} from {{city}} took {{2..2900}} ms")
        return f"{stamp} {level} [{dice.letters(4)}-{dice.number(1, 32)}] {event}"

    return fill_document(dice, num_words, write_part, "\n")


def write_transcript(dice: Dice, num_words: int) -> str:
    """A meeting of a few people who take turns."""
    grammar = choose_domain(dice)
    people = [GRAMMAR.draw(dice, "full_name") for _ in range(dice.number(3, 6))]
    return fill_document(
        dice, num_words, lambda: f"{dice.pick(people)}: {write_paragraph(dice, grammar, dice.number(1, 4))}", "\n"
    )


def write_letters(dice: Dice, num_words: int) -> str:
    """Unrelated letters, each with a place, a date, a greeting and a name of its own."""

    def write_part() -> str:
        grammar = choose_domain(dice)
        body = write_paragraph(dice, grammar, dice.number(4, 7))
        return (
            GRAMMAR.fill(dice, "{{city}}, {{date}}\nDear {{first_name#to}},\n")
            + body
            + GRAMMAR.fill(dice, "\nYours, {{full_name}}")
        )

    return fill_document(dice, num_words, write_part, "\n\n---\n\n")


def write_rules(dice: Dice, num_words: int) -> str:
    """Numbered clauses, as in a contract."""
    grammar = choose_domain(dice)
    numbers = iter(range(1, 10_000))

    def write_part() -> str:
        return f"\u00a7 {next(numbers)} {grammar.draw(dice, 'rule')} {write_sentence(dice, grammar)}"

    return fill_document(dice, num_words, write_part, "\n")


def write_table(dice: Dice, num_words: int) -> str:
    """Rows of comma-separated values or of a Markdown table; the question is about one row."""
    separator, edge = dice.pick(((",", ""), (" | ", "| "), ("\t", ""), (";", "")))
    columns = ("id", "name", "city", "article", "pieces", "price", "note")
    rows: list[list[str]] = []
    names: set[str] = set()
    total = 0
    while total < num_words:
        name = GRAMMAR.draw(dice, "full_name")
        if name in names:  # the question names a person
            continue
        names.add(name)
        fields = ("city", "thing", "{{2..900}}", "{{1..99}}.{{10..99}}", "{{adjective}} {{animal}} {{code_word}}")
        values = [GRAMMAR.draw(dice, f) if f in ("city", "thing") else GRAMMAR.fill(dice, f) for f in fields]
        rows.append([str(10_000 + 7 * len(rows) + dice.number(0, 6)), name, *values])
        total += count_words(" ".join(rows[-1]))
    wanted = dice.pick(rows)
    column = dice.number(2, len(columns) - 1)
    lines = [edge + separator.join(row) + edge[::-1] for row in ([*columns], *rows)]
    if edge:
        lines.insert(1, edge + separator.join(["---"] * len(columns)) + edge[::-1])
    question = f"What is the {columns[column]} in the row of {wanted[1]}, and what is the id of that row?"
    return pose(dice, "\n".join(lines), question)


def write_recipes(dice: Dice, num_words: int) -> str:
    """Short entries of the same form, as in a cookery book."""

    def write_part() -> str:
        grammar = choose_domain(dice)
        return f"{grammar.draw(dice, 'recipe')} {write_sentence(dice, grammar)}"

    return fill_document(dice, num_words, write_part, "\n\n")


KINDS: tuple[Callable[[Dice, int], str], ...] = (
    write_report,
    write_log,
    write_table,
    write_transcript,
    write_sections,
    write_letters,
    write_rules,
    write_recipes,
)
