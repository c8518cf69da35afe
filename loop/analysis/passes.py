"""Forward passes: when the model ran, on which batch, and which kernels were launched for it."""

import re
from typing import Literal

import numpy as np

from loop.analysis.nesting import find_innermost, find_parents
from loop.analysis.trace import NONE, Ints, Spans, Trace
from loop.record import Record

Stage = Literal["prefill", "decode", "verify", "draft", "idle", "all", "between"]
"""`all`: the trace does not tell them apart. `between`: launched for no pass, by the scheduler."""
SPAN = re.compile(r"^step\[(?P<mode>[A-Z_0-9]+)(?: bs=(?P<batch>\d+))?(?: toks=(?P<tokens>\d+))?")
"""What SGLang 0.5.15 and later write around every forward."""
FUNCTION = re.compile(
    r"srt/model_executor/\S*\.py\(\d+\): _?(?:forward|execute|replay)_?(?P<mode>extend|decode|idle|split_prefill)?$"
)
"""The same, told by the Python stack where nothing was written."""
GRAPH_RUNNER = re.compile(r"srt/model_executor/\S*graph\S*\.py\(\d+\): replay$")
STEP = re.compile(r"^ProfilerStep#\d+$")
"""What PyTorch's own schedule writes, if the traced program uses it."""
ROUND = re.compile(r"(?:^|\.)run_batch$")
FETCH = re.compile(r"(?:^|\.)get_next_batch_to_run$")
STAGES: dict[str, Stage] = {
    "EXTEND": "prefill",
    "MIXED": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DLLM_EXTEND": "prefill",
    "DECODE": "decode",
    "TARGET_VERIFY": "verify",
    "VERIFY": "verify",
    "DRAFT": "draft",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
    "IDLE": "idle",
    "PREBUILT": "idle",
}


class Pass(Record):
    """One forward of the model, as the host called it."""

    stage: Stage
    mode: str
    """SGLang's forward mode."""
    batch_size: int | None
    num_tokens: int | None
    """Of the prompts; a decode has one for each request."""
    start_ns: int
    end_ns: int
    lane: int
    external: int
    follows_on: bool
    """Whether the scheduler went straight on from the pass before, and did not wait for requests."""


def find_passes(trace: Trace) -> tuple[Pass, ...]:
    """Every forward, by start. From SGLang's own spans; without them from Python frames; else from PyTorch's steps."""
    alone = stage_of_file(trace.path.name)
    spans = trace.annotations.pick(_named(trace, SPAN))
    modes = [_span_mode(trace.names[name]) for name in spans.name]
    if not len(spans):
        spans, modes = _from_frames(trace)
    if not len(spans):
        spans = trace.annotations.pick(_named(trace, STEP))
        modes = [("STEP", None, None)] * len(spans)
    order = np.argsort(spans.start_ns, kind="stable")
    fetches = _starts(trace, FETCH)
    passes = []
    last_end: int | None = None
    for row in order.tolist():
        mode, batch, tokens = modes[row]
        start, end = int(spans.start_ns[row]), int(spans.end_ns[row])
        waits = np.searchsorted(fetches, [last_end or 0, start])
        passes.append(
            Pass(
                stage=STAGES.get(mode, alone),
                mode=mode,
                batch_size=batch,
                num_tokens=tokens,
                start_ns=start,
                end_ns=end,
                lane=int(spans.lane[row]),
                external=int(spans.external[row]),
                follows_on=last_end is not None and waits[1] - waits[0] <= 1,
            )
        )
        last_end = end
    return tuple(passes)


def assign_passes(trace: Trace, passes: tuple[Pass, ...], launch_ns: Ints, lane: Ints, external: Ints) -> Ints:
    """For each piece of work the pass it was launched for, -1 if for none.

    What a round of the scheduler launches before or after its forward (sampling, copies) belongs to that forward.
    A kernel without a launch in the trace is told by the shadow of its pass on the device, if it names one.
    """
    spans = _spans_of(passes)
    rows = np.lexsort((-spans.end_ns, spans.start_ns, spans.lane))
    ordered = spans.pick(rows)
    found = find_innermost(ordered, find_parents(ordered), lane, launch_ns)
    inside = np.where(found >= 0, rows[found] if len(rows) else NONE, NONE)
    rounds = trace.annotations.pick(_named(trace, ROUND))
    around = find_innermost(rounds, find_parents(rounds), lane, launch_ns)
    for row in np.flatnonzero((inside < 0) & (around >= 0)):
        inside[row] = _nearest(passes, rounds, int(around[row]), int(launch_ns[row]))
    by_external = {p.external: number for number, p in enumerate(passes) if p.external >= 0}
    for row in np.flatnonzero((inside < 0) & (lane < 0) & (external >= 0)):
        inside[row] = by_external.get(int(external[row]), NONE)
    return inside


def stage_of_file(name: str) -> Stage:
    """What a file's name says of all that is in it: SGLang writes one file a stage if asked to."""
    if re.search(r"-(?:EXTEND|PREFILL)\b", name, re.IGNORECASE):
        return "prefill"
    return "decode" if re.search(r"-DECODE\b", name, re.IGNORECASE) else "all"


def _nearest(passes: tuple[Pass, ...], rounds: Spans, which: int, at_ns: int) -> int:
    """The last forward of a round that began before, else its first."""
    first, last = int(rounds.start_ns[which]), int(rounds.end_ns[which])
    inside = [n for n, p in enumerate(passes) if first <= p.start_ns <= last and p.lane == rounds.lane[which]]
    before = [n for n in inside if passes[n].start_ns <= at_ns]
    return before[-1] if before else inside[0] if inside else NONE


def _span_mode(name: str) -> tuple[str, int | None, int | None]:
    found = SPAN.match(name)
    assert found
    batch, tokens = found["batch"], found["tokens"]
    return found["mode"], int(batch) if batch else None, int(tokens) if tokens else None


def _from_frames(trace: Trace) -> tuple[Spans, list[tuple[str, int | None, int | None]]]:
    """The outermost functions that say by their names in which mode the model runs."""
    mode_of: dict[int, str] = {}
    for name in np.unique(trace.frames.name):
        text = trace.names[name]
        found = FUNCTION.search(text)
        if found and found["mode"]:
            mode_of[int(name)] = found["mode"].upper()
        elif GRAPH_RUNNER.search(text):
            mode_of[int(name)] = "DECODE"
    spans = trace.frames.pick(np.isin(trace.frames.name, list(mode_of)))
    spans = spans.pick(find_parents(spans) < 0)
    return spans, [(mode_of[int(name)], None, None) for name in spans.name]


def _named(trace: Trace, pattern: re.Pattern[str]) -> Ints:
    return np.array([r for r, n in enumerate(trace.annotations.name) if pattern.search(trace.names[n])], dtype=np.int64)


def _starts(trace: Trace, pattern: re.Pattern[str]) -> Ints:
    return np.sort(trace.annotations.start_ns[_named(trace, pattern)])


def _spans_of(passes: tuple[Pass, ...]) -> Spans:
    start, end, lane = (
        np.array([getattr(p, field) for p in passes], dtype=np.int64) for field in ("start_ns", "end_ns", "lane")
    )
    nothing = np.full(len(passes), NONE, dtype=np.int64)
    return Spans(nothing, start, end, lane, nothing, nothing, nothing, nothing)
