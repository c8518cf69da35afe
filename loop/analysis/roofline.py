"""The roofline of a forward pass: the least time its operations and bytes take on a device, against what was measured.

    compute time = operations / peak            MFU = compute time / measured time
    memory time  = bytes / bandwidth            MBU = memory time / measured time
    roof         = the larger of the two        headroom = measured time − roof

Operators run one after another, so the roof of a pass is the sum of theirs. Source: Williams, Waterman, Patterson 2009,
"Roofline: an insightful visual performance model", CACM 52(4); MFU as in Chowdhery et al. 2022, arXiv:2204.02311.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from loop.analysis.roofline_operators import Batch, Forward, Operator, Precision
from loop.devices import Peaks
from loop.dimensions import Dimensions
from loop.record import Record

US_PER_S = 1e6
LAUNCH_US = 10.0
"""A kernel shorter than this that takes several times its roof is ruled by being started, not by its work."""
LAUNCH_FACTOR = 3.0
Bound = Literal["compute", "memory", "launch"]


class RooflineRow(Record):
    """One kind of operator in one pass, all its layers together, on one GPU."""

    operator: str
    """As the kernel table calls it: the projection, else the category."""
    layers: str
    """The kind of layer, and how many of them."""
    gflop: float | None
    """10^9 operations."""
    megabytes: float | None
    """10^6 bytes that must move."""
    compute_us: float | None
    """Operations at the device's peak."""
    memory_us: float | None
    """Bytes at the device's bandwidth."""
    roof_us: float | None
    """The larger of the two: no kernel is faster."""
    measured_us: float | None
    """The durations of its kernels in one pass; null where none is of this operator."""
    hidden_us: float | None
    """Of that, while another stream of the device was busy too: a faster kernel wins nothing there."""
    headroom_us: float | None
    """Measured less roof, but no more than was not hidden: what the best kernel could win."""
    mfu_pct: float | None
    mbu_pct: float | None
    bound: Bound | None
    """What rules its time; launch: kernels too short for their work to matter."""
    share_pct: float | None
    """Of the measured time of a pass."""
    shape: str


class Measured(NamedTuple):
    """Kernels of one operator in one pass."""

    us: float
    num_launches: float
    hidden_us: float = 0.0
    """While another stream was busy."""


class Roofline(Record):
    """One pass on one device."""

    batch: Batch
    device: str
    source: str
    """Who says what the device can do."""
    num_gpus: int
    rows: tuple[RooflineRow, ...]
    """By headroom, else by roof; `other` holds kernels of no operator."""
    roof_us: float | None
    busy_us: float | None
    """How long kernels of a pass ran; time that two streams shared counts once."""
    pass_us: float | None
    """From one pass to the next, idle time included."""
    mfu_pct: float | None
    mbu_pct: float | None
    """Of the pass as a whole, idle time included; of the kernels alone where its duration is not known."""


def draw_roofline(
    dimensions: Dimensions,
    batch: Batch,
    device: str,
    peaks: Peaks,
    *,
    precision: Precision | None = None,
    num_gpus: int = 1,
    measured: Mapping[str, Measured] | None = None,
    pass_us: float | None = None,
) -> Roofline:
    """Every operator of a pass. `measured` has the kernels of one pass by operator; `other` what belongs to none."""
    sizes = precision or Precision(weight_bytes=dimensions.weight_bytes)
    operators = merge(Forward(dimensions, batch, sizes).operators())
    total_us = sum(m.us for m in measured.values()) if measured else None
    busy_us = sum(m.us - m.hidden_us / 2 for m in measured.values()) if measured else None
    bits = round(8 * sizes.weight_bytes)
    rows = [
        _row(operator, peaks, bits, num_gpus, (measured or {}).get(operator.name), total_us) for operator in operators
    ]
    compute_us, memory_us = (_sum(getattr(row, name) for row in rows) for name in ("compute_us", "memory_us"))
    roof_us = _sum(row.roof_us for row in rows)
    whole_us = pass_us if pass_us is not None else busy_us
    known = {operator.name for operator in operators}
    rows += [_unknown(name, m, total_us) for name, m in (measured or {}).items() if name not in known and m.us > 0]
    return Roofline(
        batch=batch,
        device=device,
        source=peaks.source,
        num_gpus=num_gpus,
        rows=tuple(sorted(rows, key=lambda row: (-(row.headroom_us or 0.0), -(row.roof_us or 0.0)))),
        roof_us=roof_us,
        busy_us=busy_us,
        pass_us=pass_us,
        mfu_pct=_pct(compute_us, whole_us),
        mbu_pct=_pct(memory_us, whole_us),
    )


def merge(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Operators that the traces call alike as one: the activations of attention and of the feed-forward network."""
    found: dict[str, Operator] = {}
    for operator in operators:
        held = found.get(operator.name)
        if held is None:
            found[operator.name] = operator
            continue
        kind = (
            held.layer_kind if held.layer_kind == operator.layer_kind else f"{held.layer_kind}, {operator.layer_kind}"
        )
        found[operator.name] = held.model_copy(
            update={
                "layer_kind": kind,
                "count": held.count + operator.count,
                "flops": held.flops + operator.flops,
                "num_bytes": held.num_bytes + operator.num_bytes,
                "num_weights": held.num_weights + operator.num_weights,
                "shape": held.shape if held.shape == operator.shape else f"{held.shape}; {operator.shape}",
            }
        )
    return tuple(found.values())


class Speculation(Record):
    """Drafting k tokens and verifying them in one pass, at the roof."""

    num_draft_tokens: int
    verify_us: float
    draft_us: float
    """Of all k drafts, one after another."""
    break_even_accept_length: float
    """Tokens that a round must bring to be worth its time; more than k + 1 can never be."""
    best_speedup: float
    """If every draft is accepted."""


def draw_speculation(
    dimensions: Dimensions,
    batch: Batch,
    peaks: Peaks,
    *,
    precision: Precision | None = None,
    most: int = 4,
) -> tuple[Speculation, ...]:
    """For 1 to `most` drafted tokens. Empty for a model without a draft layer or a device without peaks.

    Tokens a second at the roof are accept length · B / (verify + k · draft): Leviathan et al. 2023, arXiv:2211.17192.
    """
    sizes = precision or Precision(weight_bytes=dimensions.weight_bytes)
    if not dimensions.num_draft_layers or peaks.memory_bandwidth_gb_per_s is None:
        return ()
    bits = round(8 * sizes.weight_bytes)
    plain_us = _roof_us(Forward(dimensions, batch, sizes).operators(), peaks, bits)
    draft_us = _roof_us(Forward(dimensions, batch, sizes).draft(), peaks, bits)
    found = []
    for num in range(1, most + 1):
        wide = batch.model_copy(update={"num_query_tokens": num + 1, "samples_all": True})
        verify_us = _roof_us(Forward(dimensions, wide, sizes).operators(), peaks, bits)
        round_us = verify_us + num * draft_us
        found.append(
            Speculation(
                num_draft_tokens=num,
                verify_us=verify_us,
                draft_us=num * draft_us,
                break_even_accept_length=round_us / plain_us,
                best_speedup=(num + 1) * plain_us / round_us,
            )
        )
    return tuple(found)


def _roof_us(operators: Sequence[Operator], peaks: Peaks, bits: int) -> float:
    return sum(max(filter(None, _times_us(operator, peaks, bits, 1)), default=0.0) for operator in operators)


def _times_us(operator: Operator, peaks: Peaks, bits: int, num_gpus: int) -> tuple[float | None, float | None]:
    """(compute, memory) time on each of the GPUs that share the work evenly; None where the peak is not known."""
    tflops, bandwidth = peaks.tflops(bits if operator.out_features is not None else 16), peaks.memory_bandwidth_gb_per_s
    compute = None if tflops is None else operator.flops / num_gpus / (tflops * 1e12) * US_PER_S
    memory = None if bandwidth is None else operator.num_bytes / num_gpus / (bandwidth * 1e9) * US_PER_S
    return compute, memory


def _row(
    operator: Operator, peaks: Peaks, bits: int, num_gpus: int, measured: Measured | None, total_us: float | None
) -> RooflineRow:
    compute_us, memory_us = _times_us(operator, peaks, bits, num_gpus)
    times = [time for time in (compute_us, memory_us) if time is not None]
    roof_us = max(times) if times else None
    spent_us = measured.us if measured else None
    return RooflineRow(
        operator=operator.name,
        layers=f"{operator.layer_kind} x{operator.count}",
        gflop=operator.flops / num_gpus / 1e9,
        megabytes=operator.num_bytes / num_gpus / 1e6,
        compute_us=compute_us,
        memory_us=memory_us,
        roof_us=roof_us,
        measured_us=spent_us,
        hidden_us=measured.hidden_us if measured else None,
        headroom_us=_headroom_us(measured, roof_us),
        mfu_pct=_pct(compute_us, spent_us),
        mbu_pct=_pct(memory_us, spent_us),
        bound=_bound(compute_us, memory_us, measured),
        share_pct=_pct(spent_us, total_us),
        shape=operator.shape,
    )


def _headroom_us(measured: Measured | None, roof_us: float | None) -> float | None:
    if measured is None or roof_us is None:
        return None
    return max(0.0, min(measured.us - roof_us, measured.us - measured.hidden_us))


def _bound(compute_us: float | None, memory_us: float | None, measured: Measured | None) -> Bound | None:
    if compute_us is None or memory_us is None:
        return None
    roof_us = max(compute_us, memory_us)
    if measured and LAUNCH_FACTOR * roof_us < measured.us < LAUNCH_US * measured.num_launches:
        return "launch"
    return "compute" if compute_us > memory_us else "memory"


def _unknown(name: str, measured: Measured, total_us: float | None) -> RooflineRow:
    """Kernels of no operator: nothing says what they must take."""
    return RooflineRow(
        operator=name,
        layers="",
        gflop=None,
        megabytes=None,
        compute_us=None,
        memory_us=None,
        roof_us=None,
        measured_us=measured.us,
        hidden_us=measured.hidden_us,
        headroom_us=None,
        mfu_pct=None,
        mbu_pct=None,
        bound=None,
        share_pct=_pct(measured.us, total_us),
        shape="",
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """None as soon as one is not known."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _pct(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100.0 * part / whole
