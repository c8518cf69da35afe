"""Deadlines with less than a tenth of a millisecond of error.

The event loop's own timers count in whole milliseconds, which would swallow a 2 % change of a 5 ms TTFT. On Linux one
timerfd serves everything that waits: a heap of absolute deadlines, and the kernel wakes the loop at the earliest.
Elsewhere the loop's timers have to do.

The fake server's tokens leave by it, and so do the timed client's open-loop requests.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Protocol

_NEVER = float("inf")


class Alarm(Protocol):
    """Something that rings once, at an absolute `monotonic()` time."""

    def set(self, when: float) -> None:
        """`inf` disarms it; a later call replaces an earlier one."""

    def close(self) -> None:
        """Never rings again, and holds nothing."""


class Clock:
    """Runs callbacks at absolute times of `time.monotonic()`; a callback gets the time it was woken at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._armed_for = _NEVER
        libc = ctypes.CDLL(None, use_errno=True)
        self._alarm: Alarm = (
            _TimerfdAlarm(loop, libc, self._ring) if hasattr(libc, "timerfd_create") else _LoopAlarm(loop, self._ring)
        )

    def call_at(self, when: float, callback: Callable[[float], None]) -> None:
        """Cannot be cancelled: a callback that has become pointless must know so itself."""
        heappush(self._heap, (when, next(self._order), callback))
        if when < self._armed_for:
            self._armed_for = when
            self._alarm.set(when)

    def now(self) -> float:
        """The clock that deadlines are read from."""
        return monotonic()

    def close(self) -> None:
        """Forget every deadline and give the descriptor back."""
        self._heap.clear()
        self._alarm.close()

    def _ring(self) -> None:
        heap, now = self._heap, monotonic()
        self._armed_for = -_NEVER  # callbacks push without arming; armed once below
        try:
            while heap and heap[0][0] <= now:
                heappop(heap)[2](now)
        finally:
            self._armed_for = heap[0][0] if heap else _NEVER
            self._alarm.set(self._armed_for)


class _LoopAlarm:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None if when == _NEVER else self._loop.call_later(max(0.0, when - monotonic()), self._ring)

    def close(self) -> None:
        self.set(_NEVER)


class _Timerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


class _TimerfdAlarm:
    """The descriptor stays readable until it is set again, which `Clock._ring` does before it returns."""

    _MONOTONIC, _ABSOLUTE = 1, 1

    def __init__(self, loop: asyncio.AbstractEventLoop, libc: ctypes.CDLL, ring: Callable[[], None]) -> None:
        self._fd = libc.timerfd_create(self._MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._settime = libc.timerfd_settime
        self._spec = _Timerspec(0, 0, 0, 0)
        self._spec_ref = ctypes.byref(self._spec)
        self._loop = loop
        loop.add_reader(self._fd, ring)

    def set(self, when: float) -> None:
        seconds = 0 if when == _NEVER else int(when)  # all zero disarms
        self._spec.value_s = seconds
        self._spec.value_ns = int((when - seconds) * 1e9) if seconds else 0
        self._settime(self._fd, self._ABSOLUTE, self._spec_ref, None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
