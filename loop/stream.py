"""Server-sent events from bytes, as they arrive.

An event ends at a blank line; lines end at LF, CRLF or CR and nothing else. Text is decoded only when an event is
whole, because a UTF-8 character may straddle two network reads and U+2028 is not a line end here.
Source: WHATWG HTML, section 9.2.6 (event stream interpretation).
"""

from collections.abc import Sequence

MAX_EVENT_BYTES = 64 << 20
"""A server that never ends an event is broken, not slow."""


class EventTooLarge(Exception):
    """More bytes than any event may have, and no blank line yet."""


class EventStream:
    """Feed it network reads; it yields the data of each event that they complete."""

    def __init__(self) -> None:
        self._pending = b""
        self._after_cr = False

    def feed(self, read: bytes) -> Sequence[bytes]:
        """The `data` of every event that `read` completes, without comments and other fields. May be empty bytes."""
        if (
            read.startswith(b"data: ")
            and read.find(b"\n") == len(read) - 2
            and read.endswith(b"\n")
            and not self._pending
            and b"\r" not in read
        ):
            self._after_cr = False
            return (read[6:-2],)  # one event and nothing else, as nearly always
        return self._feed(read)

    def _feed(self, read: bytes) -> Sequence[bytes]:
        if self._after_cr and read.startswith(b"\n"):
            read = read[1:]  # the second half of a CRLF whose first half ended a line already
        if read:
            self._after_cr = read.endswith(b"\r")
        if b"\r" in read:
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._pending = (self._pending + read).split(b"\n\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"{len(self._pending)} bytes without the end of an event")
        return [data for event in events if (data := _data_of(event)) is not None]

    @property
    def unfinished(self) -> bool:
        """Whether bytes of an event without its end are left."""
        return bool(self._pending.strip())


def _data_of(event: bytes) -> bytes | None:
    """The joined `data:` lines of one event, or None if it has none (a comment, a bare `event:`)."""
    if event.startswith(b"data:") and b"\n" not in event:  # nearly always
        return event[6:] if event[5:6] == b" " else event[5:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
