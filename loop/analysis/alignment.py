"""Alignment: which kernel of a mapping trace (graphs off, with stacks) a kernel inside a replayed graph is."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from loop.analysis.origins import NOWHERE, Origin
from loop.analysis.trace import NONE
from loop.analysis.work import Work, with_origins


def borrow_origins(formal: Work, mapping: Work) -> Work:
    """`formal` with origins from `mapping` for work that has none of its own.

    The k-th kernel of a name in a pass is the k-th of that name in a pass of the same stage that has as many of them.
    Where none has as many, the origin that most of that kernel's time has is taken, and called `likely`.
    """
    origin, source = list(formal.origin), list(formal.source)
    places = _places(mapping)
    likely = _most_time(mapping)
    for number in np.unique(formal.passed):
        rows = [row for row in formal.rows(int(number)) if origin[row] is NOWHERE]
        for name, same in _by_name(formal, rows).items():
            stage = formal.stage[same[0]]
            exact = places.get((stage, name, len(same))) if number != NONE else None
            for place, row in enumerate(same):
                if exact:
                    origin[row], source[row] = exact[place], "mapping"
                elif found := likely.get((stage, name)) or likely.get(("", name)):
                    origin[row], source[row] = found, "likely"
    return with_origins(formal, origin, source)


def _places(mapping: Work) -> dict[tuple[str, str, int], list[Origin]]:
    """(stage, kernel, how often in a pass) → the origins in order, from the last pass that has it so often.

    The last, because the first compiles and captures.
    """
    places: dict[tuple[str, str, int], list[Origin]] = {}
    for number in np.unique(mapping.passed):
        if number == NONE:
            continue
        for name, same in _by_name(mapping, mapping.rows(int(number)).tolist()).items():
            found = [mapping.origin[row] for row in same]
            if NOWHERE not in found:
                places[mapping.stage[same[0]], name, len(same)] = found
    return places


def _most_time(mapping: Work) -> dict[tuple[str, str], Origin]:
    """(stage, kernel), and ("", kernel) for any stage → the origin with most of its time."""
    times: dict[tuple[str, str], Counter[Origin]] = defaultdict(Counter)
    for row, origin in enumerate(mapping.origin):
        if origin is not NOWHERE:
            for stage in (mapping.stage[row], ""):
                times[stage, mapping.name[row]][origin] += int(mapping.time_ns[row])
    return {key: found.most_common(1)[0][0] for key, found in times.items()}


def _by_name(work: Work, rows: Iterable[int]) -> dict[str, list[int]]:
    """The rows of each kernel, by start."""
    grouped: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        grouped[work.name[row]].append(row)
    return grouped
