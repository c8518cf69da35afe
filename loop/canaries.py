"""Canaries: timed requests that no server can have seen, so that an answer to one must be computed.

The A after a B sends what that B sent: the reference answer exists only after B has finished. The first A sends decoys
of the same shapes in the same places, and every B has canaries of its own.
"""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from loop import prompts
from loop.dialects import Request
from loop.prompts import Prompt
from loop.traffic import timed_requests

SHARE = 20
"""One canary for so many requests of a pass, and one at least. Source: canaries in 5 % of the slots, prior art's own
share for requests that cost time and are not judged by it."""


def num_canaries(num_requests: int, num_owners: int = 1) -> int:
    """In one pass of so many requests; `num_owners` sessions may have to be repeated by one A."""
    return max(1, round(num_requests / SHARE)) * num_owners


def insert_canaries(
    model: Path,
    requests: Sequence[Request],
    texts: Sequence[Prompt],
    *,
    secret: bytes,
    owners: Sequence[str],
    workload: str,
    pass_index: int,
) -> tuple[Request, ...]:
    """The requests of a pass with canaries among them: places and shapes are the same in every session.

    `owners` are the sessions whose canaries these are, in equal parts; `texts` the prompts behind `requests`.
    """
    each = num_canaries(len(requests))
    slots = [_draw(secret, workload, pass_index, number) for number in range(each * len(owners))]
    like = [
        texts[kind % len(requests)].model_copy(update={"input_tokens": len(requests[kind % len(requests)].input_ids)})
        for kind, _ in slots
    ]
    made = {
        owner: _requests(model, like, secret=secret, owner=owner, workload=workload, pass_index=pass_index)
        for owner in dict.fromkeys(owners)
    }
    placed = list(requests)
    for number, (_, place) in enumerate(slots):
        placed.insert(place % (len(placed) + 1), made[owners[number // each]][number])
    return tuple(placed)


def _requests(
    model: Path, like: Sequence[Prompt], *, secret: bytes, owner: str, workload: str, pass_index: int
) -> tuple[Request, ...]:
    """One session's canaries, of these shapes."""
    name = f"canary-{owner}-{workload}"
    seed = hmac.new(secret, f"{name}|{pass_index}".encode(), hashlib.sha256).hexdigest()
    return timed_requests(model, prompts.canaries(seed, like), secret=secret, workload=name, pass_index=pass_index)


def _draw(secret: bytes, workload: str, pass_index: int, number: int) -> tuple[int, int]:
    """(which request a canary is like, where it stands): nobody knows before the round, and all sessions agree."""
    digest = hmac.new(secret, f"slot|{workload}|{pass_index}|{number}".encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
