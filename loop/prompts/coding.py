"""Programming tasks: complete, fix, explain, translate; Python, C, Rust, Go, SQL, JSON, YAML, regular expressions."""

import json
from collections.abc import Callable
from functools import partial

from loop.prompts.dice import Dice
from loop.prompts.grammar import Grammar
from loop.prompts.programs import Language, find_language, load_languages, load_nouns, write_function

GRAMMAR = Grammar("lexicon", "code")


def ask(slot: str, dice: Dice) -> str:
    """The slot comes first, so that `partial` turns a word list into a kind of prompt."""
    return GRAMMAR.draw(dice, slot)


def fence(language: Language, text: str) -> str:
    """A Markdown code block, labelled with the language's name in lower case."""
    return f"```{language.name.lower()}\n{text}\n```"


def write_completion(dice: Dice) -> str:
    """A commented start in Python, Rust, C, TypeScript or Go that breaks off before its body ends."""
    return f"{GRAMMAR.draw(dice, 'ask_complete')}\n\n{GRAMMAR.draw(dice, 'partial_code')}"


def write_continuation(dice: Dice) -> str:
    """Bare code that breaks off, as an editor sends it."""
    language = dice.pick(load_languages())
    lines = write_function(dice, language, dice.number(6, 14)).text.split("\n")
    return f"{language.comment} {GRAMMAR.draw(dice, 'code_word')}\n" + "\n".join(lines[: len(lines) * 2 // 3]) + "\n"


def write_bug(dice: Dice) -> str:
    """A snippet with a real defect that the request does not name."""
    return f"{GRAMMAR.draw(dice, 'ask_fix')}\n\n{GRAMMAR.draw(dice, 'broken_code')}"


def write_explanation(dice: Dice) -> str:
    """A whole function of drawn statements, so no answer to it can be known by heart."""
    language = dice.pick(load_languages())
    function = write_function(dice, language, dice.number(5, 14))
    return f"{GRAMMAR.draw(dice, 'ask_explain')}\n\n{fence(language, function.text)}"


def write_translation(dice: Dice) -> str:
    """The two languages always differ."""
    source, target = dice.some(load_languages(), 2)
    function = write_function(dice, source, dice.number(5, 12))
    return f"Translate this {source.name} function to {target.name}. Keep all names.\n\n{fence(source, function.text)}"


def write_evaluation(dice: Dice) -> str:
    """Python with whole-number arguments: it ends, so there is one right answer."""
    python = find_language("Python")
    function = write_function(dice, python, dice.number(3, 7))
    values = ", ".join(str(dice.number(0, 30)) for _ in range(function.num_parameters))
    return f"What does `{function.name}({values})` return? Trace the variables.\n\n{fence(python, function.text)}"


def write_tests(dice: Dice) -> str:
    """The number of tests asked for is drawn apart from the number of branches, so the two may not agree."""
    language = dice.pick(load_languages())
    function = write_function(dice, language, dice.number(4, 10))
    task = f"Write {dice.number(3, 6)} unit tests for this function, one for each branch."
    return f"{task}\n\n{fence(language, function.text)}"


def draw_record(dice: Dice, depth: int = 0) -> dict[str, object]:
    """A settings-like tree of drawn keys and values."""
    record: dict[str, object] = {}
    for key in dice.some(load_nouns(), dice.number(3, 5)):
        draw = dice.number(0, 6)
        if draw == 0 and depth < 2:
            record[key] = draw_record(dice, depth + 1)
        elif draw == 1:
            record[f"{key}s"] = [dice.number(1, 999) for _ in range(dice.number(2, 5))]
        elif draw == 2:
            record[key] = dice.pick((True, False, None))
        elif draw == 3:
            record[key] = dice.number(1, 9999) / 4  # exact in binary, so it prints alike everywhere
        else:
            record[key] = GRAMMAR.draw(dice, dice.pick(("code_word", "city", "full_name", "company")))
    return record


def write_json(dice: Dice) -> str:
    """About 3 in 10 documents are broken: a comma less after one entry, one too many before a brace."""
    record = draw_record(dice)
    text = json.dumps(record, indent=2)
    path = dice.pick(sorted(record))
    new_path = f"{GRAMMAR.draw(dice, 'verb')}_{path}"
    task = dice.pick(
        (
            "Convert this JSON to YAML.",
            f"Write a JSON Schema for this document; `{path}` is required.",
            f"Print the document again with `{path}` renamed to `{new_path}`. Output JSON only.",
            "Write Python dataclasses that hold this document, with types.",
        )
    )
    if dice.chance(0.3):
        text = text.replace(",\n", "\n", 1).replace("}", ",}", 1)
        task = "This JSON does not parse. List every error and print the repaired document."
    return f"{task}\n\n```json\n{text}\n```"


def write_yaml(dice: Dice) -> str:
    """A deployment file, sometimes with a wrongly indented line."""
    services = dice.some(load_nouns(), dice.number(2, 4))
    lines = [f"version: '{dice.number(2, 3)}.{dice.number(0, 9)}'", "services:"]
    for service in services:
        lines += [
            f"  {service}:",
            f"    image: {GRAMMAR.draw(dice, 'code_word')}:{dice.number(1, 20)}.{dice.number(0, 30)}",
            f"    replicas: {dice.number(1, 12)}",
            f'    ports: ["{dice.number(1024, 9999)}:{dice.number(80, 9999)}"]',
            "    environment:",
            f"      {service.upper()}_LIMIT: {dice.number(1, 900)}m",
            f"      ON_FAILURE: {dice.pick(('yes', 'no', 'on', 'off', 'retry', '~'))}",
        ]
    task = f"Convert to JSON. Which values are not strings, and why? How many replicas does {dice.pick(services)} have?"
    if dice.chance(0.5):
        wrong = dice.number(3, len(lines) - 1)
        lines[wrong] = " " + lines[wrong]
        task = "Does this parse as intended? Point to the line that is wrong and correct it."
    return f"{task}\n\n```yaml\n" + "\n".join(lines) + "\n```"


KINDS: tuple[Callable[[Dice], str], ...] = (
    write_completion,
    write_bug,
    write_explanation,
    partial(ask, "sql"),
    write_continuation,
    write_json,
    partial(ask, "regex"),
    write_translation,
    write_completion,
    write_yaml,
    write_bug,
    write_evaluation,
    partial(ask, "shell"),
    write_tests,
)
