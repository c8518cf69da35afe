"""Loads: the traffic under which a server is profiled. It is never timed: threads and httpx are good enough."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import httpx

from loop.dialects import Dialect, Request
from loop.errors import ServerError

Wave = Callable[[int], Sequence[Request]]
"""The n-th wave of requests: each time the same shapes and other words, so that no cache knows them."""
IDLE_S = 120.0
"""A server that sends nothing for so long has hung; a profiler that saves a trace stops it for seconds."""
POLL_S = 0.01


class Load(ABC):
    """A context manager: inside it the server is in a state worth looking at, and `work` keeps it there a while."""

    def __init__(self, url: str, dialect: type[Dialect], wave: Wave) -> None:
        self._url = url
        self._dialect = dialect
        self._wave = wave
        self._num_waves = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[str] = []
        self.num_chunks: list[int] = []
        """By stream, so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if any(thread.is_alive() for thread in self._threads):
            self._abort()
        for thread in self._threads:
            thread.join()

    @abstractmethod
    def work(self) -> None:
        """Returns when enough was seen; raises ServerError if the server answers nothing."""

    def next_wave(self) -> Sequence[Request]:
        """Requests that were never sent before."""
        self._num_waves += 1
        return self._wave(self._num_waves)

    def start(self, run: Callable[[int], None], number: int) -> None:
        """Run something as the `number`-th stream, in a thread of its own."""
        self.num_chunks.append(0)
        self._threads.append(threading.Thread(target=run, args=(number,), name=f"load-{number}", daemon=True))
        self._threads[-1].start()

    def send(self, request: Request, number: int) -> None:
        """One request, to its end or to the load's; its chunks are counted as the `number`-th stream's."""
        try:
            with httpx.stream(
                "POST",
                self._url + self._dialect.path,
                json=self._dialect.body(request),
                timeout=httpx.Timeout(IDLE_S),
                trust_env=False,
            ) as answer:
                answer.raise_for_status()
                for line in answer.iter_lines():
                    if line.startswith("data:"):
                        self.num_chunks[number] += 1
                    if self._ended.is_set():
                        return
        except httpx.HTTPError as problem:
            if not self._ended.is_set():
                self._failures.append(f"{type(problem).__name__}: {problem}")

    def wait(self, done: Callable[[], bool]) -> None:
        """Until `done`, or until no stream is left; raises ServerError once one of them fails."""
        deadline = time.monotonic() + IDLE_S
        seen = sum(self.num_chunks)
        while not done():
            if self._failures:
                raise ServerError(f"profile traffic failed: {self._failures[0]}", stage="traffic")
            if not any(thread.is_alive() for thread in self._threads):
                return
            now = sum(self.num_chunks)
            deadline = deadline if now == seen else time.monotonic() + IDLE_S
            seen = now
            if time.monotonic() > deadline:
                raise ServerError(f"the server sent nothing for {IDLE_S:.0f} s of profile traffic", stage="traffic")
            time.sleep(POLL_S)

    def _abort(self) -> None:
        """Ends what runs; a server that no longer answers is found out by who stops it."""
        try:
            httpx.post(f"{self._url}/abort_request", json={"abort_all": True}, timeout=10, trust_env=False)
        except httpx.HTTPError as problem:
            self._failures.append(str(problem))


class Prefill(Load):
    """One prompt after another, one token each: nothing but prefills."""

    def __init__(self, url: str, dialect: type[Dialect], wave: Wave, *, num_prompts: int) -> None:
        super().__init__(url, dialect, wave)
        self._num_prompts = num_prompts

    def work(self) -> None:
        """So many prompts."""
        prompts: list[Request] = []
        while len(prompts) < self._num_prompts:
            prompts += self.next_wave()
        self.num_chunks.append(0)
        for prompt in prompts[: self._num_prompts]:
            self.send(prompt.model_copy(update={"max_new_tokens": 1}), 0)
        if self._failures:
            raise ServerError(f"profile traffic failed: {self._failures[0]}", stage="traffic")


class Decode(Load):
    """A full batch whose prompts are done: nothing but decode steps."""

    def __init__(self, url: str, dialect: type[Dialect], wave: Wave, *, concurrency: int, num_steps: int) -> None:
        super().__init__(url, dialect, wave)
        self._concurrency = concurrency
        self._num_steps = num_steps

    def __enter__(self) -> Self:
        """Every stream has its first token."""
        requests: list[Request] = []
        while len(requests) < self._concurrency:
            requests += self.next_wave()
        for number, request in enumerate(requests[: self._concurrency]):
            self.start(lambda n, request=request: self.send(request, n), number)  # type: ignore[misc]
        try:
            self.wait(lambda: all(self.num_chunks))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def work(self) -> None:
        """Until every stream has gone on by some steps more than are looked at."""
        before = list(self.num_chunks)
        self.wait(lambda: all(now >= then + self._num_steps for now, then in zip(self.num_chunks, before, strict=True)))


class Traffic(Load):
    """As many requests in flight as the workload has, prompts and outputs mixed as they come."""

    def __init__(self, url: str, dialect: type[Dialect], wave: Wave, *, concurrency: int, seconds: float) -> None:
        super().__init__(url, dialect, wave)
        self._concurrency = concurrency
        self._seconds = seconds
        self._lock = threading.Lock()
        self._queue: list[Request] = []

    def __enter__(self) -> Self:
        for number in range(self._concurrency):
            self.start(self._go_on, number)
        return self

    def work(self) -> None:
        """For so many seconds."""
        deadline = time.monotonic() + self._seconds
        self.wait(lambda: time.monotonic() > deadline)

    def _go_on(self, number: int) -> None:
        while not self._ended.is_set() and not self._failures:
            with self._lock:
                if not self._queue:
                    self._queue = list(self.next_wave())
                request = self._queue.pop(0)
            self.send(request, number)
