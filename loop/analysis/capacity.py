"""Capacity: where a server's memory went, how many requests of which length it holds, and which flag would change that.

Everything comes from the server's log and the model's config; what neither says is None. SGLang's arithmetic (0.5.15
model_runner_kv_cache_mixin.py, 0.5.18 and later kv_cache_configurator.py):

    rest    = free after load − free before load · (1 − mem_fraction_static) − reservations
    states  = rest · r / (1 + r) / bytes of a state − 1       r = mamba_full_memory_ratio; the 1 is a padding slot
    tokens  = (rest − (states + 1) · bytes of a state) / bytes of a token's keys and values
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from loop.analysis.capacity_log import Pool, ServerLog
from loop.dimensions import Dimensions, element_bytes
from loop.record import Record

GIB = float(1 << 30)
RELIABLE_PCT = 5.0
"""A prediction that misses the log by more explains nothing."""
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144)
Limit = Literal["tokens", "requests", "states"]


class MemoryRow(Record):
    """One use of a GPU's memory."""

    use: str
    gib: float | None
    pct: float | None
    """Of what was free before anything was loaded."""
    source: str
    """The log's words, or the arithmetic."""


class ConcurrencyRow(Record):
    """How many requests of one length run at once."""

    request_tokens: int
    """Prompt and output."""
    token_limit: int
    request_limit: int | None
    state_limit: int | None
    max_concurrent: int
    binding: tuple[Limit, ...]
    """What ends it; more than one where they agree."""


class Predicted(Record):
    """What the arithmetic says against what the log says; `reason` where it says nothing."""

    what: str
    predicted: int | None
    logged: int | None
    error_pct: float | None
    reason: str | None = None

    @property
    def is_reliable(self) -> bool:
        """Whether it hits the log closely enough to be believed about other settings."""
        return self.error_pct is not None and abs(self.error_pct) <= RELIABLE_PCT


class Capacity(Record):
    """The memory of one rank of one server."""

    memory: tuple[MemoryRow, ...]
    token_kib: float | None
    """Keys and values of one token, target and draft."""
    state_mib: float | None
    """Recurrent state of one request."""
    concurrency: tuple[ConcurrencyRow, ...]
    predictions: tuple[Predicted, ...]


def plan_capacity(log: ServerLog, dimensions: Dimensions | None, lengths: Sequence[int] = LENGTHS) -> Capacity:
    """Of a log, and of the model where its config is at hand."""
    token_bytes = _per_token(log)
    state_bytes = log.state_gib * GIB / (log.num_states + 1) if log.state_gib and log.num_states else None
    return Capacity(
        memory=tuple(_memory(log)),
        token_kib=None if token_bytes is None else round(token_bytes / 1024, 3),
        state_mib=None if state_bytes is None else round(state_bytes / (1 << 20), 3),
        concurrency=tuple(_concurrency(log, lengths)),
        predictions=tuple(_predict(log, dimensions)),
    )


def _per_token(log: ServerLog) -> float | None:
    """As the pools were allocated. The log's sizes have two decimals: small pools tell nothing."""
    pools = [*log.pools, *log.draft_pools]
    if not pools or any(pool.gib < 0.1 or pool.num_tokens == 0 for pool in pools):
        return None
    return sum(pool.gib * GIB / pool.num_tokens for pool in pools)


def _memory(log: ServerLog) -> Iterator[MemoryRow]:
    """Uses in the order in which they come, the unexplained and the free last; they sum up to the whole."""
    graphs = [graph.gib for graph in log.graphs]
    known: list[tuple[str, float | None, str]] = [
        ("weights", log.weights_gib, "Load weight end"),
        ("draft weights", log.draft_weights_gib, "the second Load weight end"),
        ("KV pool", _pool_gib(log.pools), "KV Cache is allocated"),
        ("draft KV pool", _pool_gib(log.draft_pools), "KV Cache is allocated, after Memory pool end"),
        ("state pool", log.state_gib, "Mamba Cache is allocated: conv and ssm"),
        ("states of drafted tokens", log.snapshot_gib, "Mamba Cache is allocated: intermediate"),
        ("CUDA graphs", None if None in graphs or not graphs else sum(g for g in graphs if g), "Capture ... graph end"),
    ]
    total = log.before_load_gib
    spent = sum(gib for _, gib, _ in known if gib is not None)
    for use, gib, source in known:
        yield _row(use, gib, total, source)
    rest = None if total is None or log.free_gib is None else total - spent - log.free_gib
    yield _row("tables, workspaces and framework", rest, total, "before load − all above − free")
    yield _row("free", log.free_gib, total, "available memory when it began to serve")
    yield _row("all that was free before load", total, total, "Load weight begin")
    yield _row("communication, before that", log.framework_gib, None, "Init torch distributed ends")


def _row(use: str, gib: float | None, total: float | None, source: str) -> MemoryRow:
    share = None if gib is None or not total else round(100 * gib / total, 2)
    return MemoryRow(use=use, gib=None if gib is None else round(gib, 2) + 0.0, pct=share, source=source)


def _pool_gib(pools: Sequence[Pool]) -> float | None:
    held = [pool.gib for pool in pools if not pool.reserved_only]
    return sum(held) if held else None


def _concurrency(log: ServerLog, lengths: Sequence[int]) -> Iterator[ConcurrencyRow]:
    """For every length that the model's context allows, and the context itself."""
    tokens, context = log.max_total_num_tokens, log.context_tokens
    if tokens is None:
        return
    states = None
    if log.num_states is not None and (per_request := states_per_request(log)) is not None:
        states = log.num_states // per_request
    for length in sorted(
        {*(size for size in lengths if context is None or size <= context), *([context] if context else [])}
    ):
        limits: dict[Limit, int] = {"tokens": tokens // length}
        if log.max_running_requests is not None:
            limits["requests"] = log.max_running_requests
        if states is not None:
            limits["states"] = states
        least = min(limits.values())
        yield ConcurrencyRow(
            request_tokens=length,
            token_limit=limits["tokens"],
            request_limit=limits.get("requests"),
            state_limit=states,
            max_concurrent=least,
            binding=tuple(name for name, limit in limits.items() if limit == least),
        )


def states_per_request(log: ServerLog) -> int | None:
    """As the log says it; one without a prefix cache, which would keep more; else None, for releases differ."""
    if log.states_per_request is not None:
        return log.states_per_request
    return 1 if log.argument("disable_radix_cache") == "True" else None


def _predict(log: ServerLog, dimensions: Dimensions | None) -> Iterator[Predicted]:
    """States first, because tokens get what they leave."""
    missing = _why_not(log, dimensions)
    if missing is not None or dimensions is None:
        yield Predicted(
            what="max_total_num_tokens", predicted=None, logged=log.max_total_num_tokens, error_pct=None, reason=missing
        )
        return
    assert log.after_load_gib is not None
    assert log.before_load_gib is not None
    fraction = log.number("mem_fraction_static")
    assert fraction is not None
    rest = GIB * (log.after_load_gib - log.before_load_gib * (1 - fraction) - (log.reserved_gib or 0.0))
    num_shards = int(log.number("tp_size") or 1)
    pool_dtype = element_bytes(log.pools[0].dtype) if log.pools else None
    cell = dimensions.kv_bytes(pool_dtype or 2, num_shards)
    if log.draft_pools or log.draft_weights_gib:
        cell *= 1 + max(1, dimensions.num_draft_layers) / dimensions.num_attention_layers
    if dimensions.delta is not None:
        conv = element_bytes(log.argument("dtype")) or dimensions.weight_bytes
        state = dimensions.state_bytes(_state_element_bytes(log, dimensions), max(2, conv), num_shards)
        states = predict_states(log, rest, state)
        if states is None:
            logged = log.max_total_num_tokens
            why = "the log says neither --mamba-full-memory-ratio nor the size of the state cache"
            yield Predicted(what="max_total_num_tokens", predicted=None, logged=logged, error_pct=None, reason=why)
            return
        yield _compare("max_mamba_cache_size", states, log.num_states)
        rest -= (states + 1) * state + GIB * (log.snapshot_gib or 0.0)
    page = int(log.number("page_size") or 1)
    tokens = int(rest // cell) // page * page
    most = log.number("max_total_tokens")
    yield _compare("max_total_num_tokens", min(tokens, int(most)) if most else tokens, log.max_total_num_tokens)


def predict_states(log: ServerLog, rest_bytes: float, state_bytes: float) -> int | None:
    """States in the pool: as asked for, as many as requests where no prefix cache keeps more, else their share."""
    asked = log.number("max_mamba_cache_size")
    requests = log.number("max_running_requests")
    if asked is None and log.argument("disable_radix_cache") == "True":
        asked = requests
    if asked is not None:
        return int(asked)
    ratio = log.number("mamba_full_memory_ratio")
    if ratio is None or log.snapshot_gib is not None:
        return log.num_states  # solved together with the snapshots of drafted tokens: the log's own is as good
    return int((rest_bytes * ratio / (1 + ratio) - state_bytes) // state_bytes)


def _why_not(log: ServerLog, dimensions: Dimensions | None) -> str | None:
    """What a prediction lacks, in words; None if nothing."""
    if dimensions is None:
        return "the model's config.json is not at hand: --model DIR"
    if "sliding_attention" in dimensions.layers:
        return "layers that slide a window share memory by rules that are not modelled here"
    if log.before_load_gib is None or log.after_load_gib is None:
        return "the log does not say what was free before and after the weights"
    if log.number("mem_fraction_static") is None:
        return "the log does not say --mem-fraction-static"
    if any(pool.reserved_only for pool in log.pools):
        return "pools were sized after graph capture"
    return None


def _state_element_bytes(log: ServerLog, dimensions: Dimensions) -> float:
    """Of the recurrent state: the flag, the config, else float32, which is SGLang's default."""
    return element_bytes(log.argument("mamba_ssm_dtype") or dimensions.state_dtype) or 4.0


def _compare(what: str, predicted: int, logged: int | None) -> Predicted:
    error = None if not logged else round(100 * (predicted / logged - 1), 2)
    return Predicted(what=what, predicted=predicted, logged=logged, error_pct=error)


def total_is_kept(capacity: Capacity) -> bool:
    """Whether the parts of the memory sum up to the whole, as far as the log's two decimals tell."""
    sizes = {row.use: row.gib for row in capacity.memory}
    whole = sizes["all that was free before load"]
    parts = [gib for use, gib in sizes.items() if not use.startswith(("all that", "communication")) and gib is not None]
    return whole is None or abs(sum(parts) - whole) <= 0.01 * len(parts)


def crossings(capacity: Capacity) -> tuple[tuple[int, tuple[Limit, ...]], ...]:
    """(request length, limits) wherever another limit begins to bind."""
    rows = capacity.concurrency
    return tuple(
        (after.request_tokens, after.binding) for before, after in pairwise(rows) if after.binding != before.binding
    )
