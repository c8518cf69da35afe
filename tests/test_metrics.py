"""Metrics: what is counted from when, in which direction, and what is missing."""

from typing import Any

import pytest

from loop.metrics.e2e import E2e
from loop.metrics.goodput import Goodput
from loop.metrics.makespan import Makespan
from loop.metrics.throughput import Throughput
from loop.metrics.tpot import Tpot
from loop.metrics.ttft import Ttft
from loop.replies import Reply

MS = 1_000_000


def reply(*, due: int | None = None, sent: int | None = 0, first: int = 20, last: int = 110, **fields: Any) -> Reply:
    """Ten tokens, the first alone; all times in milliseconds."""
    times = {"scheduled_ns": due, "sent_ns": sent, "first_ns": first, "last_ns": last}
    counted = {"num_tokens": 10, "num_first_tokens": 1}
    in_ns = {name: None if value is None else value * MS for name, value in times.items()}
    return Reply.model_validate({"rid": "r", **in_ns, **counted, **fields})


def test_a_closed_loop_counts_from_sending() -> None:
    """That is when its user began to wait."""
    made = reply(sent=10)

    assert (10.0, 100.0, 10.0) == (made.ttft_ms, made.e2e_ms, made.tpot_ms)
    assert ((10.0,), (100.0,), (10.0,)) == (Ttft().samples([made]), E2e().samples([made]), Tpot().samples([made]))


def test_an_open_loop_counts_from_the_schedule() -> None:
    """A request that left late has made its user wait all the same; both are kept."""
    made = reply(due=5, sent=15)

    assert ((15.0,), (105.0,), (10.0,)) == (Ttft().samples([made]), E2e().samples([made]), Tpot().samples([made]))
    assert (5.0, 95.0) == (made.sent_to_first_ms, made.sent_to_last_ms)
    assert 105.0 == Makespan().value([made])


def test_time_per_token_is_missing_where_it_cannot_be_told() -> None:
    """Everything in one read, or nobody knows how many tokens the first read held."""
    assert () == Tpot().samples([reply(num_first_tokens=10), reply(num_first_tokens=None), reply(num_tokens=None)])
    assert None is Tpot().value([])


def scheduled(number: int, gap: int = 100, **fields: Any) -> list[Reply]:
    """Requests every `gap` ms, each answered as `fields` say, in ms from when it was due."""
    first, last = fields.pop("first", 20), fields.pop("last", 110)
    return [
        reply(due=n * gap, sent=n * gap, first=n * gap + first, last=n * gap + last, **fields) for n in range(number)
    ]


@pytest.mark.parametrize("gap", [1, 100])
def test_goodput_is_the_requested_rate_when_all_are_good(gap: int) -> None:
    """However long the last one takes."""
    assert 1000 / gap == pytest.approx(Goodput(ttft_ms=50, tpot_ms=20).value(scheduled(8, gap)))


@pytest.mark.parametrize(
    ("slo", "spoiled", "good"),
    [
        ({"ttft_ms": 19.9}, {}, False),
        ({"ttft_ms": 20}, {}, True),
        ({"tpot_ms": 9.9}, {}, False),
        ({"tpot_ms": 10}, {}, True),
        ({"ttft_ms": 50, "tpot_ms": 9}, {}, False),
        ({"ttft_ms": 50}, {"failure": "reset"}, False),
        ({}, {"failure": "reset"}, False),
        ({}, {}, True),
        ({"tpot_ms": 10}, {"num_first_tokens": None}, False),
        ({"ttft_ms": 50}, {"num_first_tokens": None}, True),
        ({"tpot_ms": 1}, {"first": 110, "num_first_tokens": None}, True),
        ({"tpot_ms": 1}, {"first": 110, "num_first_tokens": 10}, True),
    ],
)
def test_a_request_is_good_if_it_succeeds_within_every_bound(
    slo: dict[str, float],
    spoiled: dict[str, Any],
    good: bool,  # noqa: FBT001
) -> None:
    """One read took no time per token; what cannot be told meets no bound."""
    assert good == Goodput(**slo).is_good(reply(**spoiled))


def test_goodput_counts_the_good_ones() -> None:
    """A failed one or a slow one takes its place in the schedule and gives nothing."""
    replies = [*scheduled(3), *(r.model_copy(update={"failure": "reset"}) for r in scheduled(4)[3:])]

    assert 7.5 == pytest.approx(Goodput(ttft_ms=50).value(replies))


def test_goodput_counts_the_wait_before_a_late_request_left() -> None:
    """From when it was due: 30 ms late and 20 ms more is too long for 45 ms."""
    late = [reply(due=n * 100, sent=n * 100 + 30, first=n * 100 + 50, last=n * 100 + 140) for n in range(4)]

    assert 10.0 == pytest.approx(Goodput(ttft_ms=50).value(late))
    assert 1.25 == pytest.approx(Goodput(ttft_ms=45).value(late))


def test_goodput_of_none_is_half_a_request() -> None:
    """Its logarithm must exist, so that a candidate that serves nobody well is compared, and loses."""
    assert 0.5 / 0.8 == pytest.approx(Goodput(ttft_ms=1).value(scheduled(8)))


def test_goodput_needs_two_requests() -> None:
    """One has no rate."""
    assert None is Goodput(ttft_ms=50).value(scheduled(1))
    assert None is Goodput(ttft_ms=50).value([])


def test_more_goodput_and_throughput_is_better() -> None:
    """Less of everything else."""
    assert {"higher"} == {Goodput.better, Throughput.better}
    assert {"lower"} == {metric.better for metric in (E2e, Makespan, Tpot, Ttft)}
