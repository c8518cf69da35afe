"""What was read and is not understood yet: while traffic flows, the client only notes times and bytes.

Splitting and decoding an event costs two microseconds, as much as half of receiving it, and whatever streams beside it
waits for so long. So it is done after the last response has ended, when no time is taken any more.
"""

from collections import deque

from loop.response import Response

MAX_KEPT_BYTES = 256 << 20
READ_BYTES = 160
"""What a read costs in memory beside its body: its note, the time in it, and the head of a `bytes` object."""


class Backlog:
    """The reads of all responses, oldest first.

    It holds at most `max_bytes`. When it is full, each read that comes makes place for itself: as many of the oldest
    bytes are understood at once. That is steady work and no burst, and costs what the client saves otherwise.
    """

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._notes: deque[tuple[Response, int, int] | bytes] = deque()
        self._max_bytes = max_bytes
        self.num_reads = 0
        """So far, also of those that are understood."""
        self.num_bytes = 0
        """Of memory, about."""
        self.keep = self._notes.append
        """Keep a piece of a body that came in the read noted last."""

    def note(self, response: Response, at_ns: int, num_bytes: int) -> None:
        """A read of so many bytes has come at `at_ns`; the pieces of its body follow."""
        num_bytes += READ_BYTES
        self.num_reads += 1
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes and self._notes:
            self._understand_oldest()
        self._notes.append((response, at_ns, num_bytes))

    def understand(self) -> None:
        """All that was kept, in the order of its coming."""
        while self._notes:
            self._understand_oldest()

    def _understand_oldest(self) -> None:
        """One read with all pieces of its body."""
        notes = self._notes
        note = notes.popleft()
        assert isinstance(note, tuple)
        response, at_ns, num_bytes = note
        while notes and isinstance(body := notes[0], bytes):
            response.take(at_ns, body)
            notes.popleft()
        self.num_bytes -= num_bytes
