"""One response: how it ended is known at once, what it said when its bytes are understood, which may be later."""

from loop.dialects import Dialect
from loop.replies import Failure
from loop.stream import EventStream, EventTooLarge

MAX_SHOWN_BYTES = 400
"""Of the body of a refusal."""


class Response:
    """What came back for one request, read into its dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.status: int | None = None
        """Of HTTP; None until the headers are complete."""
        self.too_large = False
        """Whether an event came that no server should send: the rest is not read."""
        self._stream = EventStream()
        self._refusal = b""
        self._failure: tuple[Failure, str] | None = None

    def fail(self, failure: Failure, error: str) -> None:
        """It ended badly. The first failure stands, but what its events say came before the end."""
        self._failure = self._failure or (failure, error)

    def take(self, at_ns: int, body: bytes) -> None:
        """Understand a piece of the body that came in the network read at `at_ns`."""
        if self.status != 200:
            self._refusal = (self._refusal + body)[:MAX_SHOWN_BYTES]
        elif not self.too_large:
            try:
                for data in self._stream.feed(body):
                    self.dialect.event(at_ns, data)
            except EventTooLarge as problem:
                self.too_large = True
                self._stream = EventStream()
                self.dialect.fail("parse", str(problem))

    def finish(self) -> None:
        """All of it was taken: what its end means, and what the dialect makes of the whole."""
        if self._failure is not None:
            self.dialect.fail(*self._failure)
        elif self.status != 200:
            self.dialect.fail("http_status", f"HTTP {self.status}: {self._refusal!r}")
        elif self._stream.unfinished:
            self.dialect.fail("truncated", "the stream ended in the middle of an event")
        self.dialect.finish()
