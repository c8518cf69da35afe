"""Hints: which flag would give a server more room, what in its log speaks for it, and what it would bring."""

from collections.abc import Iterator

from loop.analysis.capacity import Capacity, states_per_request
from loop.analysis.capacity_log import ServerLog
from loop.dimensions import Dimensions, element_bytes
from loop.record import Record
from loop.wording import count

KEEP_SHARE = 0.06
"""Of the memory before load, left free for activations: prefill chunks, sampling, what arrives later."""
KEEP_GIB = 4.0
IDLE_SHARE = 0.10
"""More than this left free when it begins to serve is memory that nobody uses."""


class Hint(Record):
    """One change to try, in one bundle."""

    flag: str
    """With its value where one can be said."""
    reason: str
    brings: str


def find_hints(log: ServerLog, capacity: Capacity, dimensions: Dimensions | None = None) -> tuple[Hint, ...]:
    """The most useful first; empty where the log gives no reason to change anything."""
    return (
        *_pressed(log),
        *_idle_memory(log),
        *_ungraphed(log),
        *_scarce_states(log, capacity),
        *_scarce_tokens(log, capacity),
        *_scarce_requests(log, capacity),
        *_copied_heads(log, dimensions),
    )


def _pressed(log: ServerLog) -> Iterator[Hint]:
    """It ran out of memory, or threw requests out of it."""
    fraction = log.number("mem_fraction_static")
    if log.num_out_of_memory:
        lower = "" if fraction is None else f" {fraction - 0.05:.2f}"
        yield Hint(
            flag=f"--mem-fraction-static{lower}",
            reason=f"it said {count(log.num_out_of_memory, 'time')} that GPU memory was out",
            brings="room for activations; a smaller --chunked-prefill-size needs less of it",
        )
    if log.num_retractions:
        conservative = log.number("schedule_conservativeness")
        higher = "" if conservative is None else f" {conservative + 0.3:.1f}"
        yield Hint(
            flag=f"--schedule-conservativeness{higher}",
            reason=f"the KV pool was full and running requests were thrown out {count(log.num_retractions, 'time')}",
            brings="no work done twice; or a larger pool: --mem-fraction-static, --kv-cache-dtype fp8_e4m3",
        )


def _idle_memory(log: ServerLog) -> Iterator[Hint]:
    """Memory that was left free when it began to serve."""
    fraction, total, free = log.number("mem_fraction_static"), log.before_load_gib, log.free_gib
    on_cpu = (log.argument("device") or "").startswith("cpu")
    if fraction is None or not total or free is None or on_cpu or log.num_out_of_memory:
        return
    spare = free - max(KEEP_GIB, KEEP_SHARE * total)
    if free < IDLE_SHARE * total or spare <= 0:
        return
    higher = min(0.95, fraction + int(100 * spare / total) / 100)
    pools = sum(pool.gib for pool in (*log.pools, *log.draft_pools)) + (log.state_gib or 0.0)
    more = f", about {100 * (higher - fraction) * total / pools:.0f} % more tokens and states" if pools > 1 else ""
    if higher > fraction:
        yield Hint(
            flag=f"--mem-fraction-static {higher:.2f}",
            reason=f"{free:.1f} of {total:.1f} GiB were free when it began to serve (now {fraction:g})",
            brings=f"{(higher - fraction) * total:.0f} GiB for the pools{more}",
        )


def _ungraphed(log: ServerLog) -> Iterator[Hint]:
    """Batches that are larger than any captured graph decode without one, launch by launch."""
    most, captured = log.max_running_requests, log.num_graphed
    if most is None or captured is None or most <= captured:
        return
    new = "cuda_graph_max_bs_decode" in log.arguments
    yield Hint(
        flag=f"--cuda-graph-max-bs{'-decode' if new else ''} N",
        reason=f"graphs were captured up to batch {captured}, and {most} requests may run",
        brings=f"decoding by graph above batch {captured}, if that much traffic comes; capture takes time and memory",
    )


def _scarce_states(log: ServerLog, capacity: Capacity) -> Iterator[Hint]:
    """Recurrent states end concurrency for some length."""
    lengths = [row.request_tokens for row in capacity.concurrency if "states" in row.binding]
    if not lengths:
        return
    dtype = log.argument("mamba_ssm_dtype")
    if element_bytes(dtype or "float32") == 4:
        yield Hint(
            flag="--mamba-ssm-dtype bfloat16",
            reason=f"recurrent states end concurrency for requests of up to {max(lengths)} tokens",
            brings="nearly twice as many states; it changes numerics, so the gates must agree",
        )
    if (ratio := log.number("mamba_full_memory_ratio")) is not None:
        yield Hint(
            flag=f"--mamba-full-memory-ratio {ratio * 1.5:.2g}",
            reason=f"recurrent states end concurrency for requests of up to {max(lengths)} tokens",
            brings="more states and fewer tokens of KV",
        )
    per_request = states_per_request(log)
    if per_request is not None and per_request > 1:
        yield Hint(
            flag="--disable-radix-cache",
            reason=f"the prefix cache keeps {per_request} states per request",
            brings=f"up to {per_request} times as many requests, where prompts share no prefix",
        )


def _scarce_tokens(log: ServerLog, capacity: Capacity) -> Iterator[Hint]:
    """Keys and values end concurrency for some length."""
    lengths = [row.request_tokens for row in capacity.concurrency if "tokens" in row.binding]
    sizes = {element_bytes(pool.dtype) for pool in log.pools}
    if lengths and sizes <= {2.0, 4.0} and sizes:
        yield Hint(
            flag="--kv-cache-dtype fp8_e4m3",
            reason=f"the KV pool ends concurrency for requests of {min(lengths)} tokens and more",
            brings="twice as many tokens, and half as many bytes to read; it changes numerics, so the gates must agree",
        )


def _scarce_requests(log: ServerLog, capacity: Capacity) -> Iterator[Hint]:
    """A setting alone ends concurrency."""
    rows = [row for row in capacity.concurrency if row.binding == ("requests",)]
    if rows and log.argument("max_running_requests") is not None:
        room = max(min(limit for limit in (row.token_limit, row.state_limit) if limit is not None) for row in rows)
        yield Hint(
            flag=f"--max-running-requests {room}",
            reason=f"{log.max_running_requests} requests are its own limit; memory holds {room} of the shortest",
            brings="more requests at once; each of them then gets its tokens more slowly",
        )


def _copied_heads(log: ServerLog, dimensions: Dimensions | None) -> Iterator[Hint]:
    """More GPUs share the heads of a layer than it has heads of keys and values."""
    shards = int(log.number("tp_size") or 1)
    if dimensions is None or (log.argument("enable_dp_attention") or "False") != "False":
        return
    heads = 1 if dimensions.latent is not None else dimensions.num_kv_heads
    if shards > heads:
        yield Hint(
            flag="--enable-dp-attention",
            reason=f"{shards} GPUs share {count(heads, 'head')} of keys and values, kept {shards // heads} times",
            brings="every token's keys and values once; each GPU then attends for requests of its own",
        )
