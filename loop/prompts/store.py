"""Prompts on disk: one canonical JSON object a line."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from loop.errors import SuiteError
from loop.record import Record, canonical_json


class Prompt(Record):
    """One text to send, and how much of an answer to ask for."""

    id: str = Field(min_length=1)
    """Unique within its file."""
    category: str = Field(min_length=1)
    text: str = Field(min_length=1)
    max_new_tokens: int = Field(ge=1)
    input_tokens: int | None = Field(default=None, ge=1)
    """The text is cut to exactly this many tokens before it is sent; None sends it whole."""


def write(path: Path, prompts: Sequence[Prompt]) -> None:
    """Replaces the file, in the order given; raises SuiteError if two prompts share an id."""
    path.write_bytes(format_lines(prompts, path))


def read(path: Path) -> tuple[Prompt, ...]:
    """Raises SuiteError with the file and the line of anything that is not a prompt."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SuiteError(f"cannot read prompts from {path}: {error.strerror}") from error
    return parse_lines(data, path)


def format_lines(prompts: Sequence[Prompt], path: Path) -> bytes:
    """The bytes of a prompt file; `path` is named when two prompts share an id."""
    refuse_repeats(prompts, path)
    return b"".join(canonical_json(prompt.model_dump(mode="json")) + b"\n" for prompt in prompts)


def parse_lines(data: bytes, path: Path) -> tuple[Prompt, ...]:
    """Raises SuiteError for no lines, a last line that is cut off, anything not a prompt, and a repeated id."""
    if not data:
        raise SuiteError(f"{path} holds no prompts")
    # Not splitlines(): it would also split at U+2028, U+0085 and others, which JSON strings may hold unescaped.
    *lines, rest = data.split(b"\n")
    if rest:
        raise SuiteError(f"{path}:{len(lines) + 1}: the last line has no end; was the file cut off?")
    prompts = tuple(parse_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1))
    refuse_repeats(prompts, path)
    return prompts


def parse_line(line: bytes, where: str) -> Prompt:
    """`where` is the file and line that a SuiteError names."""
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise SuiteError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # also numbers of too many digits and too deep nesting
        raise SuiteError(f"{where}: not JSON: {error}") from error
    try:
        return Prompt.model_validate(fields)
    except ValidationError as error:
        raise SuiteError(f"{where}: not a prompt: {describe_errors(error)}") from error


def describe_errors(error: ValidationError) -> str:
    """One line for all of them, each with the path of its field, or `line` if the whole is wrong."""
    return "; ".join(f"{'.'.join(map(str, found['loc'])) or 'line'}: {found['msg']}" for found in error.errors())


def refuse_repeats(prompts: Iterable[Prompt], path: Path) -> None:
    """Raises SuiteError with the first id that occurs more than once, and how often."""
    for repeated, count in Counter(prompt.id for prompt in prompts).items():
        if count > 1:
            raise SuiteError(f"{path}: {count} prompts have the id {repeated!r}")
