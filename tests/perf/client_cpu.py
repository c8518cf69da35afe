"""CPU time of a client's process tree while its traffic flows, and of the server beside it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.perf.client_load import FakeServer

WAIT_S = 0.01
"""Between two looks before the first request."""
FLOW_S = 0.02
FAMILY_S = 0.5
"""Between two searches for new processes of the tree."""


@dataclass(frozen=True)
class Sample:
    """CPU seconds used so far."""

    at_s: float
    client_cpu_s: float
    server_cpu_s: float


class Meter(threading.Thread):
    """Looks at the client and the server until it is stopped.

    The traffic begins with the first request that the server counts. It is asked for that count only after it has run,
    and no more once there was one: being asked costs it, and the client beside it, time.
    """

    def __init__(self, client_pid: int, server: FakeServer, num_requests_before: int) -> None:
        super().__init__(daemon=True)
        self._client = psutil.Process(client_pid)
        self._server_process = psutil.Process(server.pid)
        self._server = server
        self._before = num_requests_before
        self._family: list[psutil.Process] = [self._client]
        self._searched_s = 0.0
        self._last: dict[int, float] = {}
        self._ended = threading.Event()
        self._samples: list[Sample] = []
        self._begun = False
        self._server_ran_ns = 0

    def run(self) -> None:
        """One sample after the other. Of those before the traffic the last two are kept: it begins after the first."""
        while not self._ended.is_set():
            self._samples.append(self._look())
            if self._begun:
                time.sleep(FLOW_S)
                continue
            self._samples = self._samples[-2:]
            self._begun = self._was_asked()
            time.sleep(0 if self._begun else WAIT_S)

    def stop(self) -> None:
        """The client has ended."""
        self._ended.set()
        self.join()

    def cores(self, duration_s: float) -> tuple[float, float]:
        """Cores used by (client, server) in the first `duration_s` of the traffic."""
        if not self._begun or len(self._samples) < 2:
            raise RuntimeError("it sent no request")
        times_s = [sample.at_s for sample in self._samples]
        end_s = (times_s[0] + times_s[1]) / 2 + duration_s
        client_s = np.interp(end_s, times_s, [sample.client_cpu_s for sample in self._samples])
        server_s = np.interp(end_s, times_s, [sample.server_cpu_s for sample in self._samples])
        begin = self._samples[0]
        return float(client_s - begin.client_cpu_s) / duration_s, float(server_s - begin.server_cpu_s) / duration_s

    def _was_asked(self) -> bool:
        if self._ran_ns() == self._server_ran_ns:
            return False
        num_requests, _ = self._server.counts()
        self._server_ran_ns = self._ran_ns()
        return num_requests > self._before

    def _ran_ns(self) -> int:
        return int(Path(f"/proc/{self._server.pid}/schedstat").read_text().split()[0])

    def _look(self) -> Sample:
        now_s = time.monotonic()
        if now_s - self._searched_s > FAMILY_S:
            self._searched_s = now_s
            with contextlib.suppress(psutil.Error):
                self._family = [self._client, *self._client.children(recursive=True)]
        self._last.update(_cpu_s(self._family))
        server = self._server_process.cpu_times()
        return Sample(now_s, sum(self._last.values()), server.user + server.system)


def _cpu_s(family: list[psutil.Process]) -> Iterator[tuple[int, float]]:
    """Of those that live. A child that has ended keeps what it was last seen with."""
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            yield process.pid, times.user + times.system
