"""No server is faster than its device: weights must be read for every token, and multiplied with every prompt token."""

import math
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, ClassVar, NamedTuple

from loop.compare import load_metric
from loop.gates import Bracket, Gate, GateResult
from loop.session import Session
from loop.suites import Workload

CACHE_BYTES = 256e6
"""Weights that may stay on the chip from token to token: the largest last-level cache of the devices here (MI300X)."""
FULL = ("float32", "float")
"""Weights served in any other type have 16 bits at most."""


class Bounds(NamedTuple):
    """The best that can be believed of a session."""

    tpot_ms: float
    """Per token of one stream."""
    ttft_ms_per_token: float
    """Per prompt token that was not cached."""
    tokens_per_s: float
    """Of all streams."""


class Physics(Gate):
    """Bounds by memory bandwidth for decoding, by arithmetic for prefill and throughput; beside them backstops.

    Sources: the roofline of a decode step (Pope et al. 2022, "Efficiently scaling transformer inference"), the peaks in
    `loop/devices.toml`, backstops from prior art's sanity bounds.
    """

    name: ClassVar[str] = "physics"

    margin: float = 1.2
    """How much better than a peak allows is still believed: peaks are rounded, and clocks differ."""
    min_tpot_ms: float = 0.05
    min_ttft_ms: float = 0.2
    max_tokens_per_s_per_gpu: float = 20_000.0
    """Of a device whose peaks nobody knows."""

    def check(self, bracket: Bracket) -> GateResult:
        """A first: if even the baseline is too fast, the bounds are wrong, or what was measured is."""
        nearest = 0.0
        for session in (*bracket.arm("A"), *bracket.arm("B")):
            bounds = self._bounds(bracket, session)
            for workload in bracket.suite.suite.workload:
                for share, text in self._shares(bracket, session, workload, bounds):
                    nearest = max(nearest, share)
                    if share <= 1:
                        continue
                    finding = f"{workload.id} in {session.label} is faster than can be: {text}"
                    values = {"share": share}
                    if session.arm == "A":
                        return self.uninformative(finding, values, reason="physics")
                    return self.refused(finding, values)
        known = bracket.peaks is not None and bracket.weights is not None
        whose = "this device" if known else "any device (the peaks of this one are not known)"
        return self.passed(f"at most {100 * nearest:.0f} % of what can be believed of {whose}", {"share": nearest})

    def _bounds(self, bracket: Bracket, session: Session) -> Bounds:
        """From weights and peaks where both are known, else the backstops."""
        weights, peaks, info = bracket.weights, bracket.peaks, session.info or {}
        num_gpus = _num_gpus(session)
        if weights is None or peaks is None:
            return Bounds(self.min_tpot_ms, 0.0, self.max_tokens_per_s_per_gpu * num_gpus)
        num_bits = min(weights.num_bits, _served_bits(info))
        num_bytes = max(0.0, weights.num_decode_bytes * num_bits / weights.num_bits - CACHE_BYTES * num_gpus)
        bytes_per_s = (peaks.memory_bandwidth_gb_per_s or math.inf) * 1e9 * num_gpus
        tokens_per_s = (peaks.tflops(num_bits) or math.inf) * 1e12 * num_gpus / max(1, 2 * weights.num_prompt_params)
        return Bounds(
            tpot_ms=max(self.min_tpot_ms, 1e3 * num_bytes / bytes_per_s / _accepted(session) / self.margin),
            ttft_ms_per_token=1e3 / tokens_per_s / self.margin,
            tokens_per_s=tokens_per_s * self.margin,
        )

    def _shares(
        self, bracket: Bracket, session: Session, workload: Workload, bounds: Bounds
    ) -> Iterator[tuple[float, str]]:
        """(measured against the best that can be believed, in words); more than 1 cannot be."""
        replies = [reply for reply in bracket.replies(session, "timed", workload.id) if reply.failure is None]
        tpots = [reply.tpot_ms for reply in replies if reply.tpot_ms is not None]
        if tpots:
            tpot = max(1e-6, median(tpots))
            yield bounds.tpot_ms / tpot, f"a token every {tpot:.3f} ms, and {bounds.tpot_ms:.3f} ms is the least"
        # What a server says it had cached is believed as far as the baseline says so too.
        per_token = bounds.ttft_ms_per_token * (1 - _cached_share(bracket, workload))
        ttfts = [
            (max(1e-6, reply.sent_to_first_ms), max(self.min_ttft_ms, per_token * (reply.num_prompt_tokens or 0)))
            for reply in replies
            if reply.sent_to_first_ms is not None
        ]
        if ttfts:
            ttft, least = median(ttft for ttft, _ in ttfts), median(least for _, least in ttfts)
            share = median(least / ttft for ttft, least in ttfts)
            yield share, f"a first token after {ttft:.3f} ms, and {least:.3f} ms is the least"
        measured = session.measured("timed", workload.id)
        rates = [load_metric("throughput").value(bracket.replies_in(measurement)) for measurement in measured]
        known = [rate for rate in rates if rate is not None]
        if known:
            rate, most = median(known), bounds.tokens_per_s
            yield rate / most, f"{rate:,.0f} tokens/s, and {most:,.0f} are the most"


def _num_gpus(session: Session) -> int:
    """How many GPUs share one token's work: as the server says, else all that it could use."""
    info = session.info or {}
    sizes = [info[name] for name in ("tp_size", "pp_size") if isinstance(info.get(name), int)]
    seen = len(session.conditions.gpus) if session.conditions is not None else 0
    return max(1, math.prod(sizes) if sizes else seen)


def _served_bits(info: Mapping[str, Any]) -> int:
    """Bits of a weight as it is served, at most: a server may narrow them while it loads."""
    quantization = f"{info.get('quantization') or ''} {info.get('torchao_config') or ''}".strip()
    if quantization:
        wide = any(word in quantization for word in ("fp8", "int8", "w8")) and "4" not in quantization
        return 8 if wide else 4
    return 32 if info.get("dtype") in FULL else 16


def _accepted(session: Session) -> float:
    """Tokens for one reading of the weights: as the server counted them, within what its settings allow."""
    info = session.info or {}
    if "speculative_algorithm" in info and not info["speculative_algorithm"]:
        return 1.0
    drafted = info.get("speculative_num_draft_tokens")
    most = float(drafted) if isinstance(drafted, int) else math.inf
    return max(1.0, min(session.accept_length or 1.0, most))


def _cached_share(bracket: Bracket, workload: Workload) -> float:
    """Of a workload's prompt tokens, those that the baseline had cached."""
    replies = [reply for a in bracket.arm("A") for reply in bracket.replies(a, "timed", workload.id)]
    num_prompt = sum(reply.num_prompt_tokens or 0 for reply in replies)
    return min(1.0, sum(reply.num_cached_tokens or 0 for reply in replies) / num_prompt) if num_prompt else 0.0
