"""Deadlines: absolute, in order, never early, and nothing is left when the clock is closed."""

import asyncio
import ctypes
from time import monotonic

import psutil
import pytest
import uvloop

from loop.clock import Clock


def num_descriptors() -> int:
    """Of this process."""
    return psutil.Process().num_fds()


@pytest.fixture(params=["timerfd", "loop timers"])
def _alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux, and a system without timerfd."""
    if request.param == "loop timers":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    elif not hasattr(ctypes.CDLL(None), "timerfd_create"):
        pytest.skip("this system has no timerfd")


@pytest.mark.usefixtures("_alarm")
def test_callbacks_come_in_the_order_of_their_deadlines_and_never_early() -> None:
    """Also one that is set by another, and one whose time has passed."""
    seen: list[tuple[str, float, float]] = []

    async def main() -> None:
        clock = Clock(asyncio.get_running_loop())
        start = clock.now()
        done = asyncio.Event()

        def note(name: str, due: float) -> None:
            clock.call_at(due, lambda now: seen.append((name, due, now)))

        note("late", start + 0.03)
        note("soon", start + 0.01)
        note("past", start - 1)
        clock.call_at(start + 0.02, lambda _: note("nested", start + 0.025))
        clock.call_at(start + 0.04, lambda _: done.set())
        await done.wait()
        clock.close()

    uvloop.run(main())

    assert ["past", "soon", "nested", "late"] == [name for name, _, _ in seen]
    assert [] == [name for name, due, now in seen if now < due]


@pytest.mark.usefixtures("_alarm")
def test_a_closed_clock_rings_no_more_and_holds_nothing() -> None:
    """A client makes one for every step of a session."""
    rung: list[float] = []

    async def main() -> int:
        before = num_descriptors()
        clock = Clock(asyncio.get_running_loop())
        clock.call_at(monotonic() + 0.01, rung.append)
        clock.close()
        await asyncio.sleep(0.03)
        return num_descriptors() - before

    assert 0 == uvloop.run(main())
    assert [] == rung


def test_the_clock_is_monotonic() -> None:
    """Its deadlines are comparable with `time.monotonic()`, and nobody can set it back."""

    async def main() -> tuple[float, float, float]:
        clock = Clock(asyncio.get_running_loop())
        times = monotonic(), clock.now(), monotonic()
        clock.close()
        return times

    before, now, after = asyncio.run(main())

    assert before <= now <= after
