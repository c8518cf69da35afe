"""Pairing: which traces are read, of which rank, and which of them explains the graphs of which."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loop.analysis.capture import Capture
from loop.analysis.ranks import rank_of, same_rank
from loop.analysis.trace import Trace, read_trace
from loop.errors import InputError

SUFFIXES = (".trace.json.gz", ".trace.json", ".pt.trace.json.gz", ".pt.trace.json", ".json.gz", ".json")


def open_captures(
    paths: Sequence[Path], *, rank: str | None = None, mapping: Path | None = None, anchor: str | None = None
) -> tuple[Capture, ...]:
    """The traces of files and of directories, each with the mapping trace that explains its graphs, if there is one.

    Raises InputError if there is no trace, or if traces of several ranks are named and none is chosen.
    """
    files = choose_rank(paths, rank)
    own = [read_trace(file, rank) for file in files]
    given = [read_trace(mapping, rank)] if mapping else []
    for trace in own:
        refuse_other_rank(trace, given)
    maps = [Capture(trace) for trace in (given or own) if not trace.graphs and len(trace.frames) and len(trace.kernels)]
    return tuple(Capture(trace, pick_mapping(trace, maps), anchor=anchor) for trace in own)


def choose_rank(paths: Sequence[Path], rank: str | None) -> list[Path]:
    """The files to read: of a directory those of the wanted or first rank; of several that are named, all or none."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(f for f in path.rglob("*") if f.is_file() and f.name.endswith(SUFFIXES[:4]))
        inside = inside or sorted(f for f in path.rglob("*") if f.is_file() and f.name.endswith(SUFFIXES))
        if not inside:
            raise InputError(
                f"{path} holds no trace (*.trace.json.gz)", next="profile first, or name the directory SGLang saved to"
            )
        wanted = rank if rank is not None else rank_of(inside[0].name)
        files += [f for f in inside if same_rank(rank_of(f.name), wanted)]
    chosen = [f for f in files if rank is None or same_rank(rank_of(f.name), rank)]
    if files and not chosen:
        raise InputError(
            f"no trace of rank {rank}: they are of {', '.join(sorted({rank_of(f.name) for f in files}))}",
            next="name one of these with --rank",
        )
    ranks = sorted({rank_of(f.name) for f in chosen} - {""})
    if any(not same_rank(ranks[0], other) for other in ranks[1:]):
        raise InputError(
            f"these traces are of different ranks: {', '.join(ranks)}; a table is of one rank",
            next=f"loop analyze --rank {ranks[0]} {' '.join(str(path) for path in paths)}",
        )
    return chosen


def refuse_other_rank(trace: Trace, given: Sequence[Trace]) -> None:
    """Raises InputError if a mapping trace is of another rank: its kernels may be others."""
    for other in given:
        if not same_rank(trace.rank, other.rank):
            raise InputError(
                f"{other.path.name} is of rank {other.rank}, {trace.path.name} of rank {trace.rank}",
                next=f"give a mapping trace of rank {trace.rank}",
            )


def pick_mapping(trace: Trace, maps: Sequence[Capture]) -> Capture | None:
    """Of the mapping traces the one that knows most of a trace's kernel time; None if the trace has no graphs."""
    if not trace.graphs:
        return None
    names, inverse = np.unique(trace.kernels.name, return_inverse=True)
    times = np.bincount(inverse, weights=trace.kernels.duration_ns)
    known = [
        sum(float(time) for name, time in zip(names, times, strict=True) if trace.names[name] in kernels)
        for kernels in ({each.trace.names[n] for n in np.unique(each.trace.kernels.name)} for each in maps)
    ]
    best = max(range(len(maps)), key=lambda n: known[n], default=None)
    return maps[best] if best is not None and known[best] > 0 else None
