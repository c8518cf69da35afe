"""When an open loop's requests are due: exactly the asked load, drawn once, the same in every session."""

from itertools import pairwise
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.arrivals import schedule_ns
from loop.suites import Workload
from tests.brackets import workload

RATES = st.floats(0.01, 10_000)
COUNTS = st.integers(1, 300)
ARRIVALS = st.sampled_from(["constant", "poisson", None])


def open_loop(rate_per_s: float = 10.0, **fields: Any) -> Workload:
    """An open-loop workload."""
    prompts = {"file": "prompts.jsonl", "sha256": "0" * 64}
    usual = {"id": "open", "kind": "open_loop", "prompts": prompts, "slo": {"ttft_ms": 100}, "rate_per_s": rate_per_s}
    return Workload.model_validate({**usual, **fields})


def gaps_s(schedule: tuple[int, ...] | None) -> list[float]:
    """Seconds between neighbours."""
    assert schedule is not None
    return [(later - earlier) / 1e9 for earlier, later in pairwise(schedule)]


@pytest.mark.parametrize("kind", ["sequential", "concurrent", "offline"])
def test_a_closed_loop_has_no_schedule(kind: str) -> None:
    """It waits for answers."""
    assert None is schedule_ns(workload("w", kind), 0, 8)


@given(RATES, COUNTS, ARRIVALS, st.integers(0, 5))
def test_every_schedule_has_exactly_the_asked_rate(
    rate_per_s: float, count: int, arrival: str | None, pass_index: int
) -> None:
    """The first request at once, the last one at (n - 1) / rate, nothing out of order: no draw changes the load."""
    schedule = schedule_ns(open_loop(rate_per_s, arrival=arrival), pass_index, count)

    assert schedule is not None
    assert (count, 0) == (len(schedule), schedule[0])
    assert list(schedule) == sorted(schedule)
    assert (count - 1) / rate_per_s == pytest.approx(schedule[-1] / 1e9, abs=1e-6)


def test_constant_arrivals_are_evenly_spaced() -> None:
    """Also if nothing is said."""
    assert schedule_ns(open_loop(4.0, arrival="constant"), 0, 5) == schedule_ns(open_loop(4.0), 1, 5)
    assert (0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000) == schedule_ns(open_loop(4.0), 0, 5)


def test_poisson_arrivals_come_in_bursts() -> None:
    """The gaps of a Poisson process spread as much as they last, on average."""
    gaps = gaps_s(schedule_ns(open_loop(10.0, arrival="poisson"), 0, 5000))

    assert 0.1 == pytest.approx(fmean(gaps))
    assert 0.1 == pytest.approx(pstdev(gaps), rel=0.05)


def test_a_schedule_is_the_same_in_every_session_and_another_in_every_pass() -> None:
    """And another for every seed."""

    def drawn(pass_index: int, seed: int | None = None) -> tuple[int, ...] | None:
        return schedule_ns(open_loop(arrival="poisson", seed=seed), pass_index, 50)

    assert drawn(0) == drawn(0) == drawn(0, 0)
    assert 4 == len({drawn(0), drawn(1), drawn(0, 1), drawn(1, 1)})


def test_a_known_schedule() -> None:
    """Another one would make old rounds unrepeatable."""
    schedule = schedule_ns(open_loop(10.0, arrival="poisson", seed=7), 2, 5)

    assert schedule is not None
    assert [0, 95, 155, 355, 400] == [round(at / 1e6) for at in schedule]
