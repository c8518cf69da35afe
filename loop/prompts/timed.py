"""Timed prompts: long enough to be cut to an exact number of tokens, different from the first word on."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pydantic import Field

from loop.prompts.coding import GRAMMAR as CODE_GRAMMAR
from loop.prompts.coding import draw_record
from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar
from loop.prompts.passages import (
    choose_domain,
    count_words,
    write_paragraph,
    write_section,
    write_sentence,
    write_until,
)
from loop.prompts.programs import load_languages, write_function
from loop.prompts.store import Prompt
from loop.record import Record


class Shape(Record):
    """What one timed request costs."""

    input_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)


def write_document(dice: Dice, title: str, grammar: Grammar, num_words: int) -> str:
    """Sections of changing domains; `grammar` writes the task alone."""
    return write_until(num_words, [title, grammar.draw(dice, "document_task")], lambda: write_section(dice))


def write_chat(dice: Dice, title: str, grammar: Grammar, num_words: int) -> str:
    """A long message of one person, with questions in between."""

    def write_part() -> str:
        return f"{write_paragraph(dice, grammar, dice.number(2, 5))} {grammar.draw(dice, 'chat_line')}"

    return write_until(num_words, [title, grammar.draw(dice, "chat_opening")], write_part)


def write_code(dice: Dice, title: str, grammar: Grammar, num_words: int) -> str:
    """A source file in one language, with comments, to be reviewed and extended."""
    language = dice.pick(load_languages())
    task = "Review this file, then write the next function in the same style, with tests."

    def write_part() -> str:
        draw = dice.number(0, 9)
        if draw == 0:
            return f"{language.comment} Example: {draw_record(dice)}"
        if draw < 3:
            return f"{language.comment} {write_sentence(dice, grammar)}"
        comment = CODE_GRAMMAR.fill(dice, "{{Verb}} the {{noun}}s of {{code_word}} before the {{noun}} is full.")
        return f"{language.comment} {comment}\n{write_function(dice, language, dice.number(4, 14)).text}"

    return write_until(num_words, [f"{title} ({language.name})", task], write_part)


def write_reasoning(dice: Dice, title: str, grammar: Grammar, num_words: int) -> str:
    """A puzzle of numbered facts over a handful of people."""
    people = dice.some([grammar.draw(dice, "first_name") for _ in range(12)], dice.number(5, 8))
    facts = grammar.extend({"first_name": tuple(dict.fromkeys(people))})
    numbers = iter(range(1, 10_000))

    def write_part() -> str:
        fact = facts.draw(dice, "constraint") if dice.chance(0.8) else write_sentence(dice, facts)
        return f"({next(numbers)}) {fact}"

    return write_until(num_words, [title, grammar.draw(dice, "reasoning_task")], write_part, "\n")


WRITERS: Mapping[str, Callable[[Dice, str, Grammar, int], str]] = MappingProxyType(
    {"chat": write_chat, "document": write_document, "code": write_code, "reasoning": write_reasoning}
)
KINDS = (*WRITERS, "mixed")


def traffic(seed: str, kind: str, shapes: Sequence[Shape]) -> tuple[Prompt, ...]:
    """One prompt for each shape, with at least as many words as it needs tokens.

    `mixed` takes turns among the other kinds. The first words differ, so that no prompt finds another's prefix cached.
    """
    if kind not in KINDS:
        raise ValueError(f"no such kind of traffic: {kind}; known: {', '.join(KINDS)}")
    dice = Dice("timed", seed, kind)
    openings: set[str] = set()
    prompts: list[Prompt] = []
    for index, shape in enumerate(shapes):
        writer = take_turn(index) if kind == "mixed" else kind
        prompts.append(
            Prompt(
                id=f"{writer}-{index:03d}",
                category=writer,
                text=write_text(dice.fork(index), writer, shape.input_tokens, openings),
                max_new_tokens=shape.output_tokens,
                input_tokens=shape.input_tokens,
            )
        )
    return tuple(prompts)


def warmup(seed: str, like: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """For each prompt of `like` another one of the same kind and shape.

    Comes from draws that no `traffic` or `correctness` ever makes, whatever the seeds.
    """
    return write_alike("warmup", seed, like)


def canaries(seed: str, like: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """As `warmup`, from draws of their own: prompts that nobody has seen who does not know the seed."""
    return write_alike("canary", seed, like)


def write_alike(name: str, seed: str, like: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Prompts of the kinds and shapes of `like`; `name` keeps the draws of one purpose apart from those of others."""
    dice = Dice(name, seed)
    openings: set[str] = set()
    prompts: list[Prompt] = []
    for index, wanted in enumerate(like):
        writer = wanted.category if wanted.category in WRITERS else take_turn(index)
        num_words = wanted.input_tokens or max(1, count_words(wanted.text))
        text = write_text(dice.fork(index), writer, num_words, openings)
        prompts.append(wanted.model_copy(update={"id": f"{name}-{index:03d}", "text": text}))
    return tuple(prompts)


def mixed_shapes(seed: str, count: int, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[Shape, ...]:
    """`count` shapes in which every input and every output length appears about equally often."""
    dice = Dice("shapes", seed)
    columns = [dice.shuffled([lengths[i % len(lengths)] for i in range(count)]) for lengths in (inputs, outputs)]
    return tuple(Shape(input_tokens=i, output_tokens=o) for i, o in zip(*columns, strict=True))


def take_turn(index: int) -> str:
    """The writer in the `index`-th place, so that a mixed file holds each about equally often."""
    return tuple(WRITERS)[index % len(WRITERS)]


def write_text(dice: Dice, writer: str, num_words: int, openings: set[str]) -> str:
    """At least `num_words` words; adds the first one to `openings`, so that later texts begin otherwise."""
    grammar = choose_domain(dice)
    return WRITERS[writer](dice, draw_title(dice, grammar, openings), grammar, num_words)


def draw_title(dice: Dice, grammar: Grammar, openings: set[str]) -> str:
    """A title whose first word is not in `openings` (as long as there are words left), and is from now on."""
    for _ in range(100):
        title = grammar.draw(dice, "title")
        first = title.split()[0]
        if first not in openings:
            break
    openings.add(first)
    return title
