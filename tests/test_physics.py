"""The gate `physics`: no server is faster than its device."""

from pathlib import Path
from typing import Any

import pytest

from loop.conditions import Conditions, GpuConditions
from loop.devices import Peaks
from loop.gates import GateResult
from loop.gates.physics import Physics
from loop.replies import Reply
from loop.weights import Weights
from tests.brackets import SEQUENTIAL, bracket, reply, session, suite, workload

MS = 1_000_000
GB = 10**9
# 8 billion parameters of 16 bits at 4000 GB/s: 4 ms a token. 7.5 billion at 1000 TFLOP/s: 15 us a prompt token.
PEAKS = Peaks(memory_bandwidth_gb_per_s=4000.0, bf16_tflops=1000.0, fp8_tflops=2000.0, source="a test")
WEIGHTS = Weights(
    num_bytes=17 * GB,
    num_params=8 * GB,
    num_decode_bytes=16 * GB + 256_000_000,
    num_prompt_params=7_500_000_000,
    num_bits=16,
)


def answers(
    tpot_ms: float = 10.0, ttft_ms: float = 100.0, num_tokens: int = 11, num: int = 3, **fields: Any
) -> list[Reply]:
    """Replies with these times, one after another."""
    made = []
    for index in range(num):
        first = round(ttft_ms * MS)
        last = first + round(tpot_ms * (num_tokens - 1) * MS)
        made.append(
            reply(f"one-0-{index:03d}", first_ns=first, last_ns=last, done_ns=last, num_tokens=num_tokens, **fields)
        )
    return made


def judged(
    root: Path,
    b: list[Reply],
    a: list[Reply] | None = None,
    *,
    weights: Weights | None = WEIGHTS,
    peaks: Peaks | None = PEAKS,
    settings: dict[str, float] | None = None,
    **of_b: Any,
) -> GateResult:
    """What the gate says of a B with these replies; `of_b` replaces fields of its session."""
    sessions = [
        session(root, label, timed={SEQUENTIAL: [received]}, info=of_b.get("info"))
        for label, received in (("A1", a or answers()), ("B", b), ("A2", a or answers()))
    ]
    sessions[1] = sessions[1].model_copy(update={k: v for k, v in of_b.items() if k != "info"})
    of = bracket(root, sessions, of=suite(workload(SEQUENTIAL)))
    return Physics(**(settings or {})).check(of.model_copy(update={"weights": weights, "peaks": peaks}))


def test_what_the_device_can_do_passes(tmp_path: Path) -> None:
    """With how near it came: 4 ms of 10, less the margin."""
    result = judged(tmp_path, answers(10.0))

    assert ("passed", "physics") == (result.outcome, result.reason)
    assert "at most 33 % of what can be believed of this device" == result.text
    assert pytest.approx(4 / 1.2 / 10) == result.values["share"]


@pytest.mark.parametrize(("tpot_ms", "outcome"), [(3.4, "passed"), (3.3, "refused")])
def test_weights_must_be_read_for_every_token(tmp_path: Path, tpot_ms: float, outcome: str) -> None:
    """4 ms at the peak; a fifth better is still believed."""
    result = judged(tmp_path, answers(tpot_ms))

    assert outcome == result.outcome
    if outcome == "refused":
        assert "one in B is faster than can be: a token every 3.300 ms, and 3.333 ms is the least" == result.text


@pytest.mark.parametrize(("ttft_ms", "outcome"), [(13.0, "passed"), (12.0, "refused")])
def test_weights_are_multiplied_with_every_prompt_token(tmp_path: Path, ttft_ms: float, outcome: str) -> None:
    """1000 of them: 15 ms at the peak, 12.5 with the margin."""
    result = judged(tmp_path, answers(ttft_ms=ttft_ms, num_prompt_tokens=1000))

    assert outcome == result.outcome
    if outcome == "refused":
        assert "a first token after 12.000 ms, and 12.500 ms is the least" in result.text


def test_what_was_cached_counts_only_as_far_as_in_the_baseline(tmp_path: Path) -> None:
    """A server cannot excuse itself with a cache that salts make useless."""
    fast = answers(ttft_ms=7.0, num_prompt_tokens=1000, num_cached_tokens=500)

    assert "refused" == judged(tmp_path, fast).outcome
    alike = answers(ttft_ms=20.0, num_prompt_tokens=1000, num_cached_tokens=500)
    assert "passed" == judged(tmp_path, fast, alike).outcome


def test_a_baseline_that_is_too_fast_makes_the_round_uninformative(tmp_path: Path) -> None:
    """Either the table is wrong, or what was measured."""
    result = judged(tmp_path, answers(3.0), answers(3.0))

    assert ("uninformative", "physics") == (result.outcome, result.reason)
    assert result.text.startswith("one in A1 is faster than can be")


@pytest.mark.parametrize(
    ("info", "of_b", "outcome"),
    [
        ({}, {}, "refused"),
        ({"tp_size": 2}, {}, "passed"),
        ({"tp_size": 1}, {}, "refused"),
        ({"quantization": "fp8"}, {}, "passed"),
        ({"quantization": "awq"}, {}, "passed"),
        ({"dtype": "float32"}, {}, "refused"),
        ({}, {"accept_length": 2.0}, "passed"),
        ({"speculative_algorithm": None}, {"accept_length": 2.0}, "refused"),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}, {"accept_length": 2.0}, "passed"),
        ({"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 1}, {"accept_length": 99.0}, "refused"),
    ],
)
def test_the_bound_follows_what_the_server_does(
    tmp_path: Path, info: dict[str, Any], of_b: dict[str, Any], outcome: str
) -> None:
    """More GPUs, narrower weights and accepted drafts read less for a token; 2.2 ms needs one of them."""
    assert outcome == judged(tmp_path, answers(2.2), info={"x": 0, **info}, **of_b).outcome


def test_where_the_server_says_nothing_all_gpus_that_it_could_use_count(tmp_path: Path) -> None:
    """An engine without such a setting."""
    gpu = GpuConditions(
        index=0,
        name="a gpu",
        uuid="u",
        sm_clock_mhz=None,
        power_w=None,
        temperature_c=None,
        memory_before_bytes=None,
        memory_after_bytes=None,
        limited_pct={},
        others=(),
    )
    two = Conditions(
        load_before=0.0,
        load_after=0.0,
        free_memory_before_bytes=0,
        free_memory_low_bytes=None,
        num_readings=0,
        cpu=None,
        gpus=(gpu, gpu),
    )

    assert "passed" == judged(tmp_path, answers(2.2), conditions=two).outcome


def test_weights_that_fit_into_a_cache_bound_nothing(tmp_path: Path) -> None:
    """A tiny model need not be read from memory for every token."""
    tiny = WEIGHTS.model_copy(update={"num_decode_bytes": 200_000_000, "num_prompt_params": 90_000_000})

    assert "passed" == judged(tmp_path, answers(0.06), weights=tiny).outcome


def test_all_streams_together_cannot_compute_more_than_the_device(tmp_path: Path) -> None:
    """66,667 tokens a second at the peak: many streams that are slow enough each."""
    many = answers(10.0, num=3000, num_tokens=101)

    result = judged(tmp_path, many, settings={"min_ttft_ms": 0.0})

    assert "refused" == result.outcome
    assert "tokens/s, and 80,000 are the most" in result.text


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"tpot_ms": 0.06}, "passed"),
        ({"tpot_ms": 0.04}, "refused"),
        ({"ttft_ms": 0.3}, "passed"),
        ({"ttft_ms": 0.1}, "refused"),
        ({"num": 190, "num_tokens": 21}, "passed"),
        ({"num": 210, "num_tokens": 21}, "refused"),
    ],
)
@pytest.mark.parametrize("known", [{"peaks": None}, {"weights": None}], ids=["peaks", "weights"])
def test_what_nobody_knows_has_backstops(
    tmp_path: Path, known: dict[str, None], fields: dict[str, Any], outcome: str
) -> None:
    """0.05 ms a token, 0.2 ms to the first one, 20,000 tokens a second on each GPU, or on the processor."""
    times = {"tpot_ms": 5.0, "ttft_ms": 100.0, **fields}

    result = judged(tmp_path, answers(**times), **known)

    assert outcome == result.outcome
    if outcome == "passed":
        assert result.text.endswith("any device (the peaks of this one are not known)")


def test_the_bounds_come_from_the_suite_too(tmp_path: Path) -> None:
    """Every one of them."""
    assert "refused" == judged(tmp_path, answers(3.4), settings={"margin": 1.0}).outcome
    assert "refused" == judged(tmp_path, answers(), settings={"min_tpot_ms": 11.0}, a=answers(12.0)).outcome


def test_nothing_timed_passes(tmp_path: Path) -> None:
    """It says nothing about speed that was not measured."""
    assert "passed" == Physics().check(bracket(tmp_path, [])).outcome
