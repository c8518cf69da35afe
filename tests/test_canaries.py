"""Canaries: unknown before the round, equal where they must be, and of the same shape everywhere."""

from pathlib import Path

import pytest

from loop.canaries import insert_canaries, num_canaries
from loop.dialects import Request
from loop.dialects.generate import Generate
from loop.metrics.e2e import E2e
from loop.metrics.makespan import Makespan
from loop.metrics.tpot import Tpot
from loop.metrics.ttft import Ttft
from loop.prompts import Prompt, Shape, traffic
from loop.traffic import SALT_WORDS, load_tokenizer, timed_requests
from tests.brackets import reply

TEXTS = traffic("canaries", "mixed", [Shape(input_tokens=24 + 8 * i, output_tokens=4 + i) for i in range(8)])


def sent(
    model: Path,
    owners: tuple[str, ...],
    *,
    secret: bytes = b"s",
    texts: tuple[Prompt, ...] = TEXTS,
    pass_index: int = 0,
) -> tuple[Request, ...]:
    """One pass of a workload with canaries."""
    requests = timed_requests(model, texts, secret=secret, workload="four", pass_index=pass_index)
    return insert_canaries(model, requests, texts, secret=secret, owners=owners, workload="four", pass_index=pass_index)


def canaries(requests: tuple[Request, ...]) -> dict[str, tuple[int, ...]]:
    """Their ids and prompts."""
    return {request.rid: request.input_ids for request in requests if reply(request.rid).is_canary}


@pytest.mark.parametrize(("num_requests", "expected"), [(1, 1), (3, 1), (20, 1), (32, 2), (100, 5), (1000, 50)])
def test_there_is_one_canary_in_twenty_and_one_at_least(num_requests: int, expected: int) -> None:
    """And as many again for every B in a row."""
    assert (expected, 2 * expected) == (num_canaries(num_requests), num_canaries(num_requests, 2))


def test_the_other_requests_stay_as_they_are(model: Path) -> None:
    """In their order."""
    requests = timed_requests(model, TEXTS, secret=b"s", workload="four", pass_index=0)

    assert requests == tuple(request for request in sent(model, ("B",)) if not reply(request.rid).is_canary)


def test_canaries_have_the_same_places_and_shapes_in_every_session(model: Path) -> None:
    """And other texts for every owner."""

    def shapes(owner: str) -> list[tuple[int, int, bool]]:
        return [(len(r.input_ids), r.max_new_tokens, reply(r.rid).is_canary) for r in sent(model, (owner,))]

    assert shapes("A1") == shapes("B1") == shapes("B2")
    made = [canaries(sent(model, (owner,))) for owner in ("A1", "B1", "B2")]
    assert ["canary-A1-four-0-000", "canary-B1-four-0-000", "canary-B2-four-0-000"] == [next(iter(m)) for m in made]
    assert 3 == len({ids for found in made for ids in found.values()})


def test_an_a_after_two_bs_sends_what_both_sent(model: Path) -> None:
    """Half of each one's canaries: enough to see whether each computed its answers."""
    first, second, after = (canaries(sent(model, owners)) for owners in (("B1", "B1"), ("B2", "B2"), ("B1", "B2")))

    assert (2, 2, 2) == (len(first), len(second), len(after))
    assert ["canary-B1-four-0-000", "canary-B2-four-0-001"] == sorted(after)
    assert after.items() <= {**first, **second}.items()


def test_a_canary_looks_like_any_timed_request(model: Path) -> None:
    """Salted, of the shape of a request in the same pass, and its name does not reach the server."""
    requests = sent(model, ("B",))
    (canary,) = (request for request in requests if reply(request.rid).is_canary)
    others = [request for request in requests if request is not canary]

    assert (len(canary.input_ids), canary.max_new_tokens) in {(len(r.input_ids), r.max_new_tokens) for r in others}
    assert load_tokenizer(model).decode(list(canary.input_ids)).split()[0] in SALT_WORDS
    assert canary.ignore_eos
    assert [] == [request.rid for request in requests if request.rid in str(Generate.body(request))]


def test_nobody_knows_a_canary_without_the_secret(model: Path) -> None:
    """Neither its text nor its place; and every pass has others."""
    known = sent(model, ("B",))

    assert set() == set(canaries(known).values()) & set(canaries(sent(model, ("B",), secret=b"t")).values())
    assert set() == set(canaries(known).values()) & set(canaries(sent(model, ("B",), pass_index=1)).values())
    places = {
        [reply(r.rid).is_canary for r in sent(model, ("B",), secret=bytes([number]))].index(True)
        for number in range(12)
    }
    assert len(places) > 3


def test_a_canary_of_a_whole_prompt_is_as_long(model: Path) -> None:
    """A suite may send its prompts uncut."""
    whole = (Prompt(id="p", category="chat", text="one two three " * 9, max_new_tokens=8),)

    lengths = {len(request.input_ids) for owner in ("A1", "B") for request in sent(model, (owner,), texts=whole)}

    assert 1 == len(lengths)


def test_canaries_count_for_a_makespan_and_not_for_one_request() -> None:
    """They cost time in every session alike, and are other requests in each."""
    replies = [reply("one-0-000", e2e_ms=100.0), reply("canary-B-one-0-000", e2e_ms=900.0)]

    assert (100.0,) == E2e().samples(replies)
    assert (10.0,) == Ttft().samples(replies)
    assert 1 == len(Tpot().samples(replies))
    assert (900.0,) == Makespan().samples(replies)


def test_a_workload_called_canary_is_none() -> None:
    """Its passes have numbers where a session's label has a letter."""
    assert not reply("canary-0-000").is_canary
