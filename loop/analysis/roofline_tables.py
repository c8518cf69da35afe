"""Rooflines as tables: of every stage that a trace has, else of the pass that is asked for; and of drafting."""

from collections.abc import Mapping, Sequence
from statistics import median

from loop.analysis.capture import Capture
from loop.analysis.roofline import (
    Measured,
    Roofline,
    RooflineRow,
    Speculation,
    draw_roofline,
    draw_speculation,
    merge,
)
from loop.analysis.roofline_kernels import measure_operators
from loop.analysis.roofline_operators import Batch, Forward, Precision
from loop.analysis.tables import Advice, Filled, describe
from loop.analysis.tables.forward_passes import ForwardPasses
from loop.devices import Peaks
from loop.dimensions import Dimensions
from loop.record import Record

STAGES = ("prefill", "decode", "verify")


class Question(Record):
    """What a roofline is asked for; what is None is taken from the trace, or is the least that can be."""

    dimensions: Dimensions
    device: str
    peaks: Peaks
    num_requests: int | None = None
    num_query_tokens: int | None = None
    num_context_tokens: int = 0
    num_gpus: int = 1
    pass_us: float | None = None
    """Measured by other means."""

    @property
    def precision(self) -> Precision:
        """As the checkpoint has it."""
        return Precision(weight_bytes=self.dimensions.weight_bytes)


def gather_rooflines(question: Question, captures: Sequence[Capture]) -> tuple[Filled, ...]:
    """A table per stage of each trace, without traces one; then one about drafting, if the model has a draft layer."""
    drawn = [_draw(question, capture, stage) for capture in captures for stage in _stages(capture)]
    if not drawn:
        batch = Batch(
            num_requests=question.num_requests or 1,
            num_query_tokens=question.num_query_tokens or 1,
            num_context_tokens=question.num_context_tokens,
        )
        drawn = [_roofline(question, batch, question.pass_us)]
    decode = next((one.batch for one in drawn if one.batch.num_query_tokens == 1), None)
    drafts = draw_speculation(question.dimensions, decode, question.peaks) if decode else ()
    return (*(_fill(one) for one in drawn), *([_fill_drafts(drafts)] if drafts else []))


def _stages(capture: Capture) -> list[str]:
    found = {one.stage for one in capture.passes}
    return [stage for stage in STAGES if stage in found]


def _draw(question: Question, capture: Capture, stage: str) -> Roofline:
    """The typical pass of a stage: median batch and tokens, mean kernels, median duration."""
    passes = [one for one in capture.passes if one.stage == stage]
    batches = [one.batch_size for one in passes if one.batch_size]
    requests = question.num_requests or (round(median(batches)) if batches else 1)
    tokens = [one.num_tokens // (one.batch_size or 1) for one in passes if one.num_tokens]
    query = question.num_query_tokens or (1 if stage == "decode" or not tokens else max(1, round(median(tokens))))
    batch = Batch(
        num_requests=requests,
        num_query_tokens=query,
        num_context_tokens=question.num_context_tokens,
        samples_all=stage == "verify",
    )
    operators = merge(Forward(question.dimensions, batch, question.precision).operators())
    walls = [row.step_us for row in ForwardPasses().rows(capture) if row.stage == stage]
    whole = question.pass_us or (median(walls) if walls else None)
    return _roofline(question, batch, whole, measured=measure_operators(capture, stage, operators))


def _roofline(
    question: Question, batch: Batch, pass_us: float | None, measured: Mapping[str, Measured] | None = None
) -> Roofline:
    return draw_roofline(
        question.dimensions,
        batch,
        question.device,
        question.peaks,
        precision=question.precision,
        num_gpus=question.num_gpus,
        measured=measured or None,
        pass_us=pass_us,
    )


def _fill(drawn: Roofline) -> Filled:
    batch = drawn.batch
    name = "decode" if batch.num_query_tokens == 1 else "verify" if batch.samples_all else "prefill"
    what = f"{batch.num_requests} x {batch.num_query_tokens} tokens behind {batch.num_context_tokens}"
    measured = any(row.measured_us is not None for row in drawn.rows)
    brief: tuple[str, ...] = ("operator", "layers", "gflop", "megabytes", "roof_us")
    brief += (
        ("measured_us", "hidden_us", "headroom_us", "mfu_pct", "mbu_pct", "bound") if measured else ("bound", "shape")
    )
    return Filled(
        table=f"roofline_{name}",
        title=f"roofline of {name}, {what}, on {drawn.device}",
        columns=describe(RooflineRow),
        brief=brief,
        rows=tuple(row.document() for row in drawn.rows),
        advice=_advise(drawn, measured=measured),
    )


def _advise(drawn: Roofline, *, measured: bool) -> Advice | None:
    if drawn.roof_us is None:
        return Advice(
            look_first=f"nobody knows what {drawn.device} can do at best: only operations and bytes are given",
            next_edit=f'give its peaks in loop.toml: [device."{drawn.device}"] memory_bandwidth_gb_per_s, bf16_tflops',
        )
    look = f"at the roof the pass takes {drawn.roof_us:.0f} µs"
    if drawn.pass_us is not None:
        look += f"; measured {drawn.pass_us:.0f} µs (MFU {drawn.mfu_pct:.1f} %, MBU {drawn.mbu_pct:.1f} %)"
    if drawn.busy_us is not None and drawn.pass_us is not None:
        look += f", of which kernels ran {drawn.busy_us:.0f} µs and the device idled the rest"
    top = drawn.rows[0]
    if not measured or top.headroom_us is None:
        biggest = max(drawn.rows, key=lambda row: row.roof_us or 0.0)
        edit = f"the most is {biggest.operator}: {biggest.roof_us:.0f} µs, ruled by {biggest.bound}"
        return Advice(look_first=look, next_edit=f"{edit}; give a trace to see what is lost")
    why = {
        "launch": "ruled by being launched, not by their work: fuse them into their neighbours",
        "memory": "far from the bandwidth",
        "compute": "far from the peak",
    }
    edit = f"{top.operator} takes {top.measured_us:.0f} µs where {top.roof_us:.0f} would do"
    return Advice(look_first=look, next_edit=f"{edit}: its kernels are {why[top.bound or 'memory']}")


def _fill_drafts(drafts: Sequence[Speculation]) -> Filled:
    best = max(drafts, key=lambda row: row.best_speedup)
    return Filled(
        table="speculation",
        title="drafting with the model's own layer, at the roof",
        columns=describe(Speculation),
        brief=tuple(Speculation.model_fields),
        rows=tuple(row.document() for row in drafts),
        advice=Advice(
            look_first=f"{best.num_draft_tokens} drafts pay from {best.break_even_accept_length:.2f} tokens a round on",
            next_edit="compare with the accept length in the server's log, and try --speculative-algorithm NEXTN",
        ),
    )
