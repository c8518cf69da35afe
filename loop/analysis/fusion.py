"""Fusion: where kernels that could be one follow each other. The patterns are in `fusion_patterns.toml`."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loop.analysis.capture import Capture
from loop.analysis.trace import Ints
from loop.analysis.work import Work
from loop.errors import InputError
from loop.record import Record, parse

Bools = NDArray[np.bool_]
CATALOGUE = Path(__file__).with_name("fusion_patterns.toml")
QUANTIZED = re.compile(r"fp8|fp4|e4m3|e5m2|e2m1|float8|int8|int4|mxfp|w8a8|w4a16|awq|gptq|marlin", re.IGNORECASE)


class Pattern(Record):
    """Kernels that could be one."""

    name: str
    parts: tuple[str, ...]
    """Regular expressions for `category kernel`, with ` #projection` behind where one is known."""
    active: str | None = None
    """One for kernels in which the parts are one already."""
    needs: tuple[Literal["tp", "moe", "quantized"], ...] = ()
    path: str
    source: str
    state: Literal["exists", "similar", "to write"]
    """Of the fused kernel in SGLang: there; there for another model or layout; nowhere known."""
    why: str


class Sequences(Record):
    """Where a pattern's parts follow each other in a stage: rows of work, in order, one tuple for each time."""

    pattern: Pattern
    stage: str
    rows: tuple[tuple[int, ...], ...] = ()
    active_rows: tuple[int, ...] = ()
    """Where they are one kernel already."""


class Catalogue(Record):
    """All patterns, the more specific first."""

    pattern: tuple[Pattern, ...]


@lru_cache(maxsize=1)
def read_catalogue() -> tuple[Pattern, ...]:
    """The patterns of the package."""
    document = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    return parse(document, Catalogue, InputError, where=CATALOGUE.name).pattern


def properties(capture: Capture) -> frozenset[str]:
    """What the trace shows of the model and how it is served: tp, moe, quantized."""
    work = capture.work
    seen = {
        "tp": capture.trace.world_size > 1 or "communication" in work.category,
        "moe": "moe" in work.category,
        "quantized": any(QUANTIZED.search(name) for name in set(work.name))
        or any(QUANTIZED.search(origin.dtypes or "") for origin in set(work.origin)),
    }
    return frozenset(name for name, holds in seen.items() if holds)


def find_sequences(capture: Capture) -> tuple[Sequences, ...]:
    """Every pattern in every stage where it, or its fused kernel, occurs. Each kernel counts once."""
    work, have = capture.work, properties(capture)
    patterns = [pattern for pattern in read_catalogue() if have.issuperset(pattern.needs)]
    texts = [_text(work, row) for row in range(len(work))]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    which = np.array([numbers[text] for text in texts], dtype=np.int64)
    runs = [work.rows(int(number)) for number in np.unique(work.passed) if number >= 0]
    taken = np.zeros(len(work), dtype=bool)
    found: list[Sequences] = []
    for pattern in patterns:
        hits: dict[str, list[tuple[int, ...]]] = {}
        fits = [_searcher(numbers, part)[which] for part in pattern.parts]
        for run in runs:
            for rows in _matches(run, fits, taken):
                taken[list(rows)] = True
                hits.setdefault(work.stage[rows[0]], []).append(rows)
        fused: dict[str, list[int]] = {}
        if pattern.active:
            for row in np.flatnonzero(_searcher(numbers, pattern.active)[which] & (work.passed >= 0)).tolist():
                fused.setdefault(work.stage[row], []).append(row)
        found += [
            Sequences(pattern=pattern, stage=s, rows=tuple(hits.get(s, ())), active_rows=tuple(fused.get(s, ())))
            for s in dict.fromkeys((*hits, *fused))
        ]
    return tuple(found)


def _matches(run: Ints, fits: Sequence[Bools], taken: Bools) -> list[tuple[int, ...]]:
    """Where the parts follow each other in a pass, none of them taken, none twice."""
    found = []
    place = 0
    while place + len(fits) <= len(run):
        rows = run[place : place + len(fits)].tolist()
        if all(fit[row] and not taken[row] for fit, row in zip(fits, rows, strict=True)):
            found.append(tuple(rows))
            place += len(fits)
        else:
            place += 1
    return found


def _searcher(texts: Mapping[str, int], pattern: str) -> Bools:
    """Of each text whether the pattern occurs in it."""
    search = re.compile(pattern, re.IGNORECASE).search
    return np.array([search(text) is not None for text in texts], dtype=bool)


def _text(work: Work, row: int) -> str:
    projection = work.origin[row].projection
    return f"{work.category[row]} {work.name[row]}{f' #{projection}' if projection else ''}"
