"""The events of a Chrome trace, read in one pass and a few megabytes at a time, from a whole file or a torn one."""

import codecs
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loop.errors import InputError

BLOCK_BYTES = 1 << 20
"""Of the file, read at once."""
CHUNK_BYTES = 8 << 20
"""Of JSON, parsed at once."""
MAX_TRIES = 50
"""Places to cut at before more of the file is read."""
GZIP = b"\x1f\x8b"
ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
NO_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)[-+]?(?:inf|nan|infinity)\b(?=\s*[,}\]])", re.IGNORECASE)
"""Kineto has written bandwidths and occupancies like this; it is no JSON."""


class Args(msgspec.Struct, gc=False):
    """Of an event's arguments, those that the tables need. Writers disagree on types."""

    external: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    device: Any = None
    stream: Any = None
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    labels: Any = None


class Event(msgspec.Struct, gc=False):
    """One event. Times in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str | None = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: Any = None
    tid: Any = None
    args: Args | None = None


class Head(msgspec.Struct):
    """What stands beside the events."""

    devices: Any = msgspec.field(name="deviceProperties", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents", default=[])


_EVENTS = msgspec.json.Decoder(list[Event])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(Event)
_HEAD = msgspec.json.Decoder(Head)


class Chrome:
    """A file of events. `heads`, `torn` and `num_unreadable` are final once `batches` is exhausted."""

    def __init__(self, path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self._chunk_bytes = chunk_bytes
        self.heads: list[Head] = []
        self.torn = ""
        """What is missing at the end, or nothing."""
        self.num_unreadable = 0

    def batches(self) -> Iterator[list[Event]]:
        """Every event that can be read, in the order of the file. Raises InputError if this is no trace."""
        chunks = self._chunks()
        buffer = self._open_array(chunks)
        for chunk in chunks:
            buffer += chunk
            if (cut := self._cut(buffer, whole=False)) is not None:
                events, end = cut
                buffer = buffer[end:]
                yield events
        yield self._finish(buffer)

    def _open_array(self, chunks: Iterator[bytes]) -> bytes:
        """What follows the bracket that opens the events."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            if buffer.lstrip()[:1] not in (b"{", b"["):
                break
            if buffer.lstrip()[:1] == b"[":
                return buffer.lstrip()[1:]
            if found := ARRAY.search(buffer):
                self._keep_head(buffer[: found.end()] + b"]}")
                return buffer[found.end() :]
        if self.path.stat().st_size == 0:
            raise InputError(f"{self.path} is empty: the profiler had not written it yet", next="profile again")
        if self.torn:
            raise InputError(f"{self.path} cannot be read: {self.torn}", next="profile again")
        raise InputError(
            f"{self.path} is no torch-profiler trace: it holds no traceEvents",
            next="give the *.trace.json.gz that SGLang saved",
        )

    def _finish(self, buffer: bytes) -> list[Event]:
        """The last events, up to the end of the array or to where the file is torn."""
        for opening, array_only in ((b'{"traceEvents":[', False), (b"[", True)):
            try:
                if array_only:
                    return self._decode(opening + buffer)
                head = _HEAD.decode(repair(opening + buffer))
            except msgspec.DecodeError:
                continue
            self.heads.append(head)
            return self._one_by_one(head.events)
        self.torn = self.torn or "the JSON ends in the middle"
        cut = self._cut(buffer, whole=True)
        return cut[0] if cut else []

    def _cut(self, buffer: bytes, *, whole: bool) -> tuple[list[Event], int] | None:
        """The events up to the last place where the buffer can be cut, and where the rest begins.

        A cut inside an event leaves a bracket or a string open, so that what decodes was cut between two.
        """
        end = len(buffer)
        for _ in range(MAX_TRIES):
            end = buffer.rfind(b"}", 0, end)
            if end < 0:
                return None
            following = BETWEEN.match(buffer, end)
            if not following and not whole:
                continue
            try:
                events = self._decode(b"[" + buffer[: end + 1] + b"]")
            except msgspec.DecodeError:
                continue
            return events, following.end() if following else end + 1
        return None

    def _decode(self, array: bytes) -> list[Event]:
        """The events of a JSON array; what is no event is counted and left out."""
        try:
            return _EVENTS.decode(array)
        except msgspec.ValidationError:
            return self._one_by_one(_RAWS.decode(array))
        except msgspec.DecodeError:
            repaired = repair(array)
            if repaired == array:
                raise
            return self._one_by_one(_RAWS.decode(repaired))

    def _one_by_one(self, raws: list[msgspec.Raw]) -> list[Event]:
        events = []
        for raw in raws:
            try:
                events.append(_EVENT.decode(raw))
            except msgspec.ValidationError:
                self.num_unreadable += 1
        return events

    def _keep_head(self, text: bytes) -> None:
        try:
            self.heads.append(_HEAD.decode(repair(text)))
        except msgspec.DecodeError:
            return  # names and ranks are then unknown, the events are not

    def _chunks(self) -> Iterator[bytes]:
        """The text in pieces of a chunk at least, but for the last; invalid UTF-8 replaced."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        pieces: list[bytes] = []
        num_bytes = 0
        for block in self._blocks():
            pieces.append(decoder.decode(block).encode())
            num_bytes += len(pieces[-1])
            if num_bytes >= self._chunk_bytes:
                yield b"".join(pieces)
                pieces.clear()
                num_bytes = 0
        yield b"".join([*pieces, decoder.decode(b"", final=True).encode()])

    def _blocks(self) -> Iterator[bytes]:
        """The file, decompressed; of a torn gzip what comes before the tear."""
        with self.path.open("rb") as file:
            block_bytes = min(BLOCK_BYTES, self._chunk_bytes)
            block = file.read(block_bytes)
            if not block.startswith(GZIP):
                while block:
                    yield block
                    block = file.read(block_bytes)
                return
            inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            while block or inflater.unconsumed_tail:
                try:
                    yield inflater.decompress(block, self._chunk_bytes)
                except zlib.error as problem:
                    self.torn = f"the gzip is damaged ({problem})"
                    return
                if inflater.eof and inflater.unused_data:
                    block, inflater = inflater.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)
                    if block.startswith(GZIP):
                        continue
                    return
                block = inflater.unconsumed_tail or file.read(block_bytes)
            if not inflater.eof:
                self.torn = "the gzip ends in the middle"


def repair(text: bytes) -> bytes:
    """`inf` and `nan`, which are no JSON, as null."""
    return NO_NUMBER.sub(rb"\1null", text)
