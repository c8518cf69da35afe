"""A whole round of chats in an open loop: the suite chooses both, and the verdict is about goodput."""

from collections.abc import Callable

import pytest
import tomlkit

from loop.ledger import Ledger, Round
from loop.measure import replies_of
from loop.workspace import Workspace

Run = Callable[..., Round]
Write = Callable[..., str]
RATE_PER_S = 40.0


@pytest.fixture
def chatting(workspace: Workspace) -> Workspace:
    """A workspace whose suite sends chats, one workload of them at a rate."""
    path = workspace.workloads / "brief" / "suite.toml"
    document = tomlkit.parse(path.read_text())
    document["dialect"] = "chat"
    slo = {"ttft_ms": 80.0}
    document["workload"][1].update(kind="open_loop", rate_per_s=RATE_PER_S, concurrency=8, arrival="poisson", slo=slo)
    document["gates"]["client_bound"]["min_rate_share"] = 0.5  # eight requests: one late by 4 ms is 2 % of the rate
    path.write_text(tomlkit.dumps(document))
    return workspace


def test_a_round_of_chats_in_an_open_loop(chatting: Workspace, run: Run, write_bundle: Write) -> None:
    """The baseline answers everybody too late, the candidate nobody; every session had the same schedule."""
    write_bundle("original", args={"ttft_ms": 160.0, "reasoning_tokens": 2})
    write_bundle("prompt", parent="original", args={"ttft_ms": 5.0})

    round_ = run("prompt")

    assert round_.verdict is not None
    assert ("improved", ()) == (round_.verdict.outcome, round_.verdict.refused_by), round_.verdict.text
    (compared,) = (c for c in round_.comparisons if c.scope == "four")
    assert ("goodput", "requests/s", "higher") == (compared.metric, compared.unit, compared.better)
    # eight requests and a canary, of which none was good: that counts as half a one
    assert compared.sessions["A1"] == compared.sessions["A2"] == pytest.approx(0.5 * RATE_PER_S / 9)
    assert compared.sessions["B"] > RATE_PER_S / 2
    raw = Ledger(chatting.ledger).raw_of(round_.id)
    schedules = set()
    for session in round_.sessions:
        (measured,) = session.measured("timed", "four")
        assert measured.client.punctuality is not None
        assert RATE_PER_S == pytest.approx(measured.client.punctuality.requested_rate_per_s)
        schedules.add(tuple(reply.scheduled_ns for reply in replies_of(measured, raw)))
        assert all(reply.text for reply in replies_of(measured, raw))
    assert 1 == len(schedules)
    outcomes = {gate.gate: gate.outcome for gate in round_.gates}
    assert ("passed", "passed") == (outcomes["client_bound"], outcomes["same_prompts"])
