"""Capacity as tables: memory, concurrency, predictions, hints."""

from pathlib import Path

from loop.analysis.capacity import Capacity, ConcurrencyRow, MemoryRow, Predicted, crossings, plan_capacity
from loop.analysis.capacity_hints import Hint, find_hints
from loop.analysis.capacity_log import ServerLog, read_log
from loop.analysis.tables import Advice, Filled, describe
from loop.dimensions import Dimensions


def gather_capacity(path: Path, model: Path | None) -> tuple[Filled, ...]:
    """Of a server's log, and its model's config: the one named, else the one the log names if it is here.

    Raises InputError for a file that is no server's log, or a named model without a config that is understood.
    """
    log = read_log(path)
    dimensions = Dimensions.read(model) if model else _find_dimensions(log)
    capacity = plan_capacity(log, dimensions)
    hints = find_hints(log, capacity, dimensions)
    advice = _advise(log, capacity, hints)
    return (
        Filled(
            table="memory",
            title=f"memory of one GPU of {log.architecture or 'a server'}",
            columns=describe(MemoryRow),
            brief=("use", "gib", "pct", "source"),
            rows=tuple(row.document() for row in capacity.memory),
        ),
        Filled(
            table="concurrency",
            title=f"concurrency{_sizes(capacity)}",
            columns=describe(ConcurrencyRow),
            brief=("request_tokens", "token_limit", "state_limit", "request_limit", "max_concurrent", "binding"),
            rows=tuple({**row.document(), "binding": " and ".join(row.binding)} for row in capacity.concurrency),
            why_empty="the log does not say max_total_num_tokens",
        ),
        Filled(
            table="prediction",
            title="predicted against logged",
            columns=describe(Predicted),
            brief=("what", "predicted", "logged", "error_pct", "reason"),
            rows=tuple(row.document() for row in capacity.predictions),
        ),
        Filled(
            table="hints",
            title="hints",
            columns=describe(Hint),
            brief=("flag", "reason", "brings"),
            rows=tuple(hint.document() for hint in hints),
            why_empty="nothing in the log speaks for another setting",
            advice=advice,
        ),
    )


def _find_dimensions(log: ServerLog) -> Dimensions | None:
    named = log.argument("model_path")
    directory = Path(named) if named else None
    return Dimensions.read(directory) if directory and (directory / "config.json").is_file() else None


def _sizes(capacity: Capacity) -> str:
    """What a token and a request cost."""
    parts = []
    if capacity.token_kib is not None:
        parts.append(f"a token takes {capacity.token_kib:.1f} KiB")
    if capacity.state_mib is not None:
        parts.append(f"a request's state {capacity.state_mib:.1f} MiB")
    return f": {', '.join(parts)}" if parts else ""


def _advise(log: ServerLog, capacity: Capacity, hints: tuple[Hint, ...]) -> Advice | None:
    if not hints:
        return None
    ends = [f"{' and '.join(limits)} from {length} tokens" for length, limits in crossings(capacity)]
    first = capacity.concurrency[0].binding if capacity.concurrency else ()
    what = f"concurrency is ended by {' and '.join(first)}" + (f", by {', then '.join(ends)} on" if ends else "")
    look = what if first else f"the log of {Path(log.path).name} says too little to tell what ends concurrency"
    return Advice(look_first=look, next_edit=f"{hints[0].flag}: {hints[0].reason}; it brings {hints[0].brings}")
