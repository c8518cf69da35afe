"""The digest of profiles: their busiest kernels and functions, what moved between two arms, and whether as expected."""

import csv
from collections.abc import Sequence
from pathlib import Path

from loop.analysis.capture import Capture
from loop.analysis.difference import Difference
from loop.analysis.pairing import open_captures
from loop.analysis.tables.kernels import Kernels
from loop.analysis.tables.operators import Operators
from loop.bundles import Expect
from loop.compare import Comparison
from loop.errors import InputError
from loop.profiles import Highlight, Moved, Profile, Profiled, StageChange

NUM_HIGHLIGHTS = 5
"""Of each stage and each process."""
MIN_PCT = 1.0
"""Functions with less are none of the busiest."""
NUM_MOVED = 8
FUNCTIONS = ".functions.csv"
TRACE = ".trace.json.gz"


def digest(profile: Profile, raw: Path) -> Profile:
    """The same with its highlights, from the files below `raw`."""
    found = [highlight for capture in _captures(profile, raw) for highlight in _kernels(capture)]
    for path in _files(profile, raw, FUNCTIONS):
        found += _functions(path)
    return profile.model_copy(update={"highlights": tuple(found)})


def compare_profiles(
    profiles: Sequence[Profile], raw: Path, expect: Expect | None, comparisons: Sequence[Comparison]
) -> Profiled:
    """A against B, pass by pass; nothing moved where one of both has no trace."""
    sides = [[c for p in profiles if p.arm == arm for c in _captures(p, raw)] for arm in ("A", "B")]
    if not all(sides):
        return Profiled(profiles=tuple(profiles), expectation=_expectation(expect, comparisons, ()))
    rows = Difference().fill(*sides).rows
    stages = tuple(
        StageChange(
            stage=stage,
            before_us=sum(row["before_us"] for row in rows if row["stage"] == stage),
            after_us=sum(row["after_us"] for row in rows if row["stage"] == stage),
        )
        for stage in sorted({row["stage"] for row in rows})
    )
    moved = [row for row in rows if row["status"] in ("appeared", "vanished", "slower", "faster")]
    return Profiled(
        profiles=tuple(profiles),
        stages=stages,
        moved=tuple(
            Moved(
                stage=row["stage"],
                status=row["status"],
                name=row["short_name"],
                location=row["python_location"],
                before_us=row["before_us"],
                after_us=row["after_us"],
            )
            for row in moved[:NUM_MOVED]
        ),
        expectation=_expectation(expect, comparisons, stages),
    )


def _expectation(expect: Expect | None, comparisons: Sequence[Comparison], stages: Sequence[StageChange]) -> str | None:
    """What was expected, what was measured, and whether the work of the passes moved that way; None if nothing was."""
    if expect is None:
        return None
    scope = expect.workload or "all"
    said = f"{expect.effect_pct:+.1f} % of {scope} expected"
    measured = next((c for c in comparisons if (c.scope, c.metric) == (scope, expect.metric)), None)
    if measured is not None:
        low, high = measured.low_pct, measured.high_pct
        inside = low <= expect.effect_pct <= high
        said += f", {measured.effect_pct:+.1f} % measured ({low:+.1f} to {high:+.1f}): "
        said += "as expected" if inside else "less than expected" if measured.effect_pct < expect.effect_pct else "more"
    if not stages:
        return f"{said}; no profile of both arms tells what moved"
    work = ", ".join(f"{one.stage} {one.before_us:.0f} → {one.after_us:.0f} µs a pass" for one in stages)
    gained = max(one.gain_pct for one in stages)
    if gained < min(1.0, abs(expect.effect_pct) / 4):
        return f"{said}; the work of a pass did not shrink ({work}): whatever was won was won outside it"
    return f"{said}; {work}"


def _captures(profile: Profile, raw: Path) -> tuple[Capture, ...]:
    """Of its traces, rank 0's; unreadable ones tell nothing."""
    paths = [path for path in _files(profile, raw, TRACE) if "-TP-0" in path.name or "-TP-" not in path.name]
    try:
        return open_captures(paths) if paths else ()
    except InputError:
        return ()


def _files(profile: Profile, raw: Path, suffix: str) -> list[Path]:
    return [raw / file.path for harvest in profile.harvests for file in harvest.files if file.path.endswith(suffix)]


def _kernels(capture: Capture) -> list[Highlight]:
    """The busiest of each stage; on a CPU operators, by their own time."""
    if not capture.work.on_device:
        own = [row for row in Operators().rows(capture) if row.operator != "other"][:NUM_HIGHLIGHTS]
        return [
            Highlight(
                table="operators",
                where=capture.trace.path.name.partition("-")[0],
                name=row.operator,
                location=row.python_location,
                share_pct=round(row.self_pct, 2),
            )
            for row in own
        ]
    rows = [row for row in Kernels().rows(capture) if row.kernel != "other" and row.stage != "between"]
    best = [
        row
        for stage in dict.fromkeys(row.stage for row in rows)
        for row in [one for one in rows if one.stage == stage][:NUM_HIGHLIGHTS]
    ]
    return [
        Highlight(
            table="kernels",
            where=row.stage,
            name=f"{row.short_name} ({row.projection})" if row.projection else row.short_name,
            location=row.python_location,
            share_pct=round(row.share_pct, 2),
        )
        for row in best
    ]


def _functions(path: Path) -> list[Highlight]:
    """The first rows of a table that is sorted by self time."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["self_pct"]) >= MIN_PCT][:NUM_HIGHLIGHTS]
    return [
        Highlight(
            table="functions",
            where=path.name.removesuffix(FUNCTIONS),
            name=row["function"],
            location=None,
            share_pct=round(float(row["self_pct"]), 2),
        )
        for row in rows
    ]
