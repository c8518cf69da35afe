"""Ticks: something that is read every so often, in a thread of its own, while a context lasts."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Read = Callable[[int], None]
"""Gets the milliseconds since the context began."""


@contextmanager
def ticking(period_s: float) -> Iterator[Callable[[Read], None]]:
    """Gives a function that has another one called at once, and then every period until the context ends."""
    ended, began_s = threading.Event(), time.monotonic()
    threads: list[threading.Thread] = []

    def run(read: Read) -> None:
        def tick() -> None:
            while not ended.wait(period_s):
                read(round(1000 * (time.monotonic() - began_s)))

        read(0)
        threads.append(threading.Thread(target=tick, name="ticks", daemon=True))
        threads[-1].start()

    try:
        yield run
    finally:
        ended.set()
        for thread in threads:
            thread.join()
