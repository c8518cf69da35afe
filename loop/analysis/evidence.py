"""Evidence: every table of a capture, with what is to be known about the trace itself."""

from collections.abc import Sequence

from loop import plugins
from loop.analysis import tables
from loop.analysis.capture import Capture
from loop.analysis.tables import Filled, Table
from loop.record import Record

ORDER = (
    "forward_passes",
    "idle_gaps",
    "kernels",
    "fusion",
    "overlap",
    "layer_clusters",
    "layers",
    "compute_flow",
    "operators",
    "host_functions",
)
"""From the whole to the parts; others follow by name."""


class Evidence(Record):
    """The tables of one trace."""

    trace: str
    """Its file."""
    mapping: str | None
    """The file of the trace that explained its graphs."""
    rank: str
    """Empty if nothing tells."""
    device: str | None
    """None if only the CPU was profiled."""
    num_events: int
    total_us: float
    """The sum of all kernels' durations; on a CPU of all operators' own time."""
    busy_us: float
    """How long the device did anything; less than the sum where streams overlap."""
    notes: tuple[str, ...]
    """What weakens these tables, or is left out."""
    tables: tuple[Filled, ...]


def table_names() -> tuple[str, ...]:
    """Every table, in the order they are shown."""
    known = plugins.available(tables)
    return (*(name for name in ORDER if name in known), *(name for name in known if name not in ORDER))


def gather(capture: Capture, names: Sequence[str] = ()) -> Evidence:
    """The named tables of a capture, or all. Raises InputError for a name that is no table."""
    wanted = [plugins.load(tables, name, Table)() for name in names or table_names()]
    return Evidence(
        trace=str(capture.trace.path),
        mapping=str(capture.mapping.trace.path) if capture.mapping else None,
        rank=capture.trace.rank,
        device=capture.trace.device,
        num_events=capture.trace.num_events,
        total_us=capture.total_us,
        busy_us=capture.busy_us,
        notes=notes(capture),
        tables=tuple(table.fill(capture) for table in wanted),
    )


def notes(capture: Capture) -> tuple[str, ...]:
    """What a reader must know before believing the tables."""
    trace, found = capture.trace, []
    if trace.torn:
        found.append(
            f"{trace.torn}: the tables are of what could be read; profile again and wait for SGLang's `saved` line"
        )
    if trace.num_unreadable:
        found.append(f"{trace.num_unreadable} events could not be understood and are left out")
    if trace.other_ranks:
        found.append(
            f"of a merged trace rank {trace.rank} is read; --rank chooses among {', '.join(trace.other_ranks)}"
        )
    if not len(trace.kernels):
        found.append("no device was profiled: times are those of operators on the CPU")
    elif trace.graphs and capture.mapping is None:
        found.append(
            "graphs were replayed, and their kernels do not tell who asked for them: give a mapping trace too "
            "(graphs off, with stacks): loop analyze TRACE --mapping TRACE"
        )
    if capture.mapping:
        likely = sum(source == "likely" for source in capture.work.source)
        unknown = sum(
            inside and source is None for inside, source in zip(capture.work.in_graph, capture.work.source, strict=True)
        )
        if unknown:
            found.append(f"of {capture.work.in_graph.sum()} kernels in graphs {unknown} are not in the mapping trace")
        if likely:
            found.append(
                f"of {capture.work.in_graph.sum()} kernels in graphs {likely} run in other numbers in the mapping "
                "trace: where they come from is likely, not certain"
            )
    if len(trace.kernels) and len(trace.frames):
        found.append("Python stacks were recorded, which slows the host: idle times are longer than in service")
    return tuple(found)
