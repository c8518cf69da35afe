"""What a server's log says of its memory: every line that SGLang 0.5.15 to 0.5.23 prints about it, and nothing else.

SGLang's "GB" are GiB. A server with several ranks says everything once per rank, one with a draft model twice: the
first rank that speaks is read, and of it the draft's lines apart. What a log does not say stays None.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from loop.errors import InputError
from loop.record import Record

PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<rank>(?: [A-Z]+\d+)*)\] (?P<text>.*)")
NUMBER = r"(-?\d+(?:\.\d+)?)"
DISTRIBUTED = re.compile(rf"(?:Init torch distributed ends|Memory baseline taken)\..*mem usage={NUMBER} GB")
LOAD_BEGIN = re.compile(rf"Load weight begin\. avail mem={NUMBER} GB")
LOAD_END = re.compile(rf"Load weight end\..*avail mem={NUMBER} GB(?:, mem usage={NUMBER} GB)?")
CLASS = re.compile(r"type=(\w+)")
KV = re.compile(r"KV Cache (is allocated|VA upper bound)\. (?:dtype: (\S+), )?#tokens: (\d+), (.*)")
SIZE = re.compile(rf"(?:K|V|KV) size: {NUMBER} GB")
STATE = re.compile(
    r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+), "
    rf"conv_state size: {NUMBER} ?GB, ssm_state size: {NUMBER} ?GB"
)
SNAPSHOTS = re.compile(rf"intermediate_\w+ size: {NUMBER} ?GB")
POOLS = re.compile(rf"Memory pool end\. avail mem={NUMBER} GB")
AFTER_CAPTURE = re.compile(
    rf"Post-capture KV sizing: KV cache allocated\. dtype: (\S+), #tokens: (\d+), KV size: {NUMBER} GB"
)
GRAPH_BEGIN = re.compile(rf"Capture (.*?)\s*(?:CUDA|cuda|cpu) graph begin\..*?avail mem={NUMBER} GB")
GRAPH_SIZES = re.compile(r"\b(?:bs|num_tokens)=\[([\d, ]+)\]")
GRAPH_END = re.compile(rf"Capture (.*?)\s*(?:CUDA|cuda|cpu) graph end\.(?:.*?mem usage={NUMBER} GB)?")
SUMMARY = re.compile(r"max_total_num_tokens=(\d+), .*max_running_requests=(\d+), context_len=(\d+)")
FREE = re.compile(rf"available_[a-z]+_mem={NUMBER} GB")
CAPPED = re.compile(r"max_running_requests is capped to \d+ by the mamba state cache .*?(\d+) state slots? per request")
RESERVED = re.compile(rf"Reserving {NUMBER} GB of the KV budget")
RETRACTED = "Retract requests."
OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory")
ARGUMENTS = "server_args="


class Pool(Record):
    """Keys and values of one worker."""

    dtype: str | None
    num_tokens: int
    gib: float
    reserved_only: bool = False
    """Addresses that memory is put behind later; no memory yet."""


class Graphs(Record):
    """One capture."""

    role: str
    """`target decode`, `draft extend`, ...; empty in old releases."""
    gib: float | None
    sizes: tuple[int, ...]
    """Batch sizes, or numbers of tokens, that were captured."""


class ServerLog(Record):
    """One rank of one server, GiB throughout."""

    path: str
    arguments: dict[str, str]
    """The resolved settings by field, as Python prints them."""
    framework_gib: float | None = None
    """Communication, before any weight."""
    before_load_gib: float | None = None
    """Free before the first weight."""
    after_load_gib: float | None = None
    """Free once the target's weights are there, and the draft's if they come before the pools."""
    weights_gib: float | None = None
    draft_weights_gib: float | None = None
    architecture: str | None = None
    pools: tuple[Pool, ...] = ()
    """The target's; two where some layers slide a window."""
    draft_pools: tuple[Pool, ...] = ()
    num_states: int | None = None
    """Recurrent states of requests; None for a model without them."""
    state_gib: float | None = None
    snapshot_gib: float | None = None
    """States kept for drafted tokens that may be refused."""
    states_per_request: int | None = None
    reserved_gib: float | None = None
    """Withheld from the pools for what is allocated later."""
    after_pools_gib: float | None = None
    before_graphs_gib: float | None = None
    graphs: tuple[Graphs, ...] = ()
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    context_tokens: int | None = None
    free_gib: float | None = None
    """When it began to serve."""
    num_retractions: int = 0
    num_out_of_memory: int = 0
    num_ranks: int = 1

    def argument(self, *names: str) -> str | None:
        """The first of these settings that is given and not None, unquoted."""
        for name in names:
            value = self.arguments.get(name, "None")
            if value != "None":
                return value.strip("'\"")
        return None

    def number(self, *names: str) -> float | None:
        """Likewise, as a number."""
        value = self.argument(*names)
        try:
            return None if value is None else float(value)
        except ValueError:
            return None

    @property
    def num_graphed(self) -> int | None:
        """The largest batch that decodes by a captured graph; None if none was captured."""
        sizes = [
            size
            for graphs in self.graphs
            if "draft" not in graphs.role and "prefill" not in graphs.role
            for size in graphs.sizes
        ]
        return max(sizes, default=None)


def read_log(path: Path) -> ServerLog:
    """Raises InputError where there is no file, or nothing in it that a server would say of its memory."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror}", next="give a server's log") from None
    reader = _Reader(str(path))
    for rank, line in _lines(text):
        reader.read(rank, line)
    log = reader.log
    if log.before_load_gib is None and log.max_total_num_tokens is None and not log.pools:
        arguments = "server_args=" in text
        found = "ends before the server loaded its weights" if arguments else "says nothing of a server's memory"
        raise InputError(
            f"{path} {found}", next="give the log of a server that started: ledger/raw/<round>/<session>/server.log"
        )
    return log


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """(rank, what was said) of every line that the server wrote; progress bars share lines with it."""
    for raw in text.splitlines():
        found = PREFIX.search(raw)
        if found:
            yield found["rank"].strip(), found["text"]
        elif any(word in raw for word in OUT_OF_MEMORY):
            yield "", raw


class _Reader:
    """The lines so far. The first rank that says something of its memory is the one that is read."""

    def __init__(self, path: str) -> None:
        self.log = ServerLog(path=path, arguments={})
        self._rank: str | None = None
        self._ranks: set[str] = set()
        self._num_pools_done = 0
        self._begun: dict[str, tuple[float, tuple[int, ...]]] = {}

    def read(self, rank: str, line: str) -> None:
        if line.startswith(ARGUMENTS) and not self.log.arguments:
            self._set(arguments=parse_arguments(line.removeprefix(ARGUMENTS)))
            return
        if RETRACTED in line:
            self._set(num_retractions=self.log.num_retractions + 1)
        if any(word in line for word in OUT_OF_MEMORY):
            self._set(num_out_of_memory=self.log.num_out_of_memory + 1)
        if LOAD_BEGIN.match(line):
            self._ranks.add(rank)
            self._set(num_ranks=len(self._ranks))
            self._rank = rank if self._rank is None else self._rank
        if self._rank is None or rank == self._rank:
            self._read_load(line)
            self._read_pools(line)
            self._read_graphs(line)
            self._read_summary(line)

    def _read_load(self, line: str) -> None:
        log = self.log
        if found := DISTRIBUTED.match(line):
            self._set(framework_gib=float(found[1]))
        elif found := LOAD_BEGIN.match(line):
            if log.before_load_gib is None:
                self._set(before_load_gib=float(found[1]))
        elif found := LOAD_END.match(line):
            used = float(found[2]) if found[2] else None
            if log.weights_gib is None:
                kind = CLASS.search(line)
                used = (
                    used if used is not None or log.before_load_gib is None else log.before_load_gib - float(found[1])
                )
                self._set(weights_gib=used, architecture=kind[1] if kind else None, after_load_gib=float(found[1]))
            else:
                self._set(draft_weights_gib=(log.draft_weights_gib or 0.0) + used if used is not None else None)
                if not self._num_pools_done:
                    self._set(after_load_gib=float(found[1]))

    def _read_pools(self, line: str) -> None:
        log = self.log
        if found := KV.search(line):
            sizes = [float(size) for size in SIZE.findall(found[4])]
            pool = Pool(
                dtype=found[2], num_tokens=int(found[3]), gib=round(sum(sizes), 4), reserved_only="VA" in found[1]
            )
            which = "draft_pools" if self._num_pools_done else "pools"
            self._set(**{which: (*getattr(log, which), pool)})
        elif found := AFTER_CAPTURE.match(line):
            pool = Pool(dtype=found[1], num_tokens=int(found[2]), gib=float(found[3]))
            which = "draft_pools" if log.pools and not any(p.reserved_only for p in log.pools) else "pools"
            self._set(**{which: (pool,)})
        elif (found := STATE.match(line)) and log.num_states is None:
            extra = [float(size) for size in SNAPSHOTS.findall(line)]
            self._set(
                num_states=int(found[1]),
                state_gib=round(float(found[2]) + float(found[3]), 4),
                snapshot_gib=round(sum(extra), 4) if extra else None,
            )
        elif found := CAPPED.match(line):
            self._set(states_per_request=int(found[1]))
        elif found := RESERVED.match(line):
            self._set(reserved_gib=float(found[1]))
        elif found := POOLS.match(line):
            self._num_pools_done += 1
            self._set(after_pools_gib=float(found[1]))

    def _read_graphs(self, line: str) -> None:
        if found := GRAPH_BEGIN.match(line):
            sizes = GRAPH_SIZES.search(line)
            self._begun[found[1]] = (float(found[2]), tuple(map(int, sizes[1].split(","))) if sizes else ())
            if self.log.before_graphs_gib is None:
                self._set(before_graphs_gib=float(found[2]))
        elif found := GRAPH_END.match(line):
            _, captured = self._begun.pop(found[1], (0.0, ()))
            graphs = Graphs(role=found[1], gib=float(found[2]) if found[2] else None, sizes=captured)
            self._set(graphs=(*self.log.graphs, graphs))

    def _read_summary(self, line: str) -> None:
        if found := SUMMARY.match(line):
            free = FREE.search(line)
            self._set(
                max_total_num_tokens=int(found[1]),
                max_running_requests=int(found[2]),
                context_tokens=int(found[3]),
                free_gib=float(free[1]) if free else None,
            )

    def _set(self, **fields: object) -> None:
        self.log = self.log.model_copy(update=fields)


def parse_arguments(text: str) -> dict[str, str]:
    """Field → value as printed, of `ServerArgs(a=1, b='x')` or `{'a': 1, 'b': 'x'}`. Nested values stay whole."""
    body = text[text.find("(") + 1 :] if not text.startswith("{") else text[1:]
    fields = {}
    for part in _split(body):
        found = re.match(r"\s*'?(\w+)'?\s*[=:]\s*(.*)", part, re.DOTALL)
        if found:
            fields[found[1]] = found[2].strip()
    return fields


def _split(text: str) -> Iterator[str]:
    """At commas outside brackets and quotes, up to the bracket that closes the whole."""
    depth, quote, start = 0, "", 0
    escaped = False
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                yield text[start:place]
                return
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
