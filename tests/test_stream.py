"""Server-sent events: the same events however the network cuts the bytes."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.stream import MAX_EVENT_BYTES, EventStream, EventTooLarge

LINE_ENDS = ["\n", "\r\n", "\r"]
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)
OTHER = st.one_of(
    LINE.map(lambda text: f":{text}"), LINE.map(lambda text: f"event: {text}"), st.just("id"), st.just("retry: 1")
)
DATA = st.tuples(st.sampled_from(["data:", "data: "]), LINE)


class Event:
    """Lines of one event and the data they mean."""

    def __init__(self, before: list[str], data: list[tuple[str, str]], after: list[str]) -> None:
        self.lines = [*before, *(field + text for field, text in data), *after] or [":"]
        # A space that follows the colon belongs to the syntax, also where the text brought it.
        texts = [text.removeprefix(" ") if field == "data:" else text for field, text in data]
        self.data = "\n".join(texts).encode() if data else None

    def __repr__(self) -> str:
        return f"{self.lines} -> {self.data!r}"


EVENTS = st.lists(
    st.builds(Event, st.lists(OTHER, max_size=1), st.lists(DATA, max_size=3), st.lists(OTHER, max_size=1)), max_size=5
)


def encode(events: list[Event], end: str) -> bytes:
    """The events as one server sends them."""
    return "".join("".join(line + end for line in event.lines) + end for event in events).encode()


def chunks(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """The bytes, cut at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        yield data[start:end]


def feed(*reads: bytes) -> tuple[list[bytes], bool]:
    """(every event, whether bytes were left over)."""
    stream = EventStream()
    return [event for read in reads for event in stream.feed(read)], stream.unfinished


@given(EVENTS, st.sampled_from(LINE_ENDS), st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_of_any_stream_gives_the_same_events(events: list[Event], end: str, cuts: list[int]) -> None:
    """Whatever ends the lines, and with comments and other fields between them."""
    expected = [event.data for event in events if event.data is not None]

    assert (expected, False) == feed(*chunks(encode(events, end), cuts))


@given(EVENTS, st.sampled_from(LINE_ENDS))
def test_one_byte_at_a_time_gives_the_same_events(events: list[Event], end: str) -> None:
    """The slowest network there is."""
    data = encode(events, end)
    expected = [event.data for event in events if event.data is not None]

    assert (expected, False) == feed(*(data[place : place + 1] for place in range(len(data))))


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.lists(st.integers(0, 200), max_size=6))
def test_json_text_arrives_as_it_was_sent(text: str, cuts: list[int]) -> None:
    """With raw U+2028, U+0085 and characters of four bytes in it."""
    sent = f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n".encode()

    events, unfinished = feed(*chunks(sent, cuts))

    assert [{"text": text}] == [json.loads(event) for event in events]
    assert not unfinished


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_lf_crlf_and_cr_end_a_line(character: str) -> None:
    """`str.splitlines` knows eight more, and would lose text."""
    assert ([f"a{character}b".encode()], False) == feed(f"data: a{character}b\n\n".encode())


@pytest.mark.parametrize("end", LINE_ENDS)
def test_an_event_is_there_as_soon_as_its_blank_line_is(end: str) -> None:
    """Held back, its token would look late by one gap."""
    stream = EventStream()

    assert [b"a"] == list(stream.feed(f"data: a{end}{end}".encode()))
    assert [b"b"] == list(stream.feed(f"data: b{end}{end}".encode()))
    assert not stream.unfinished


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (b"data: x\n\n", [b"x"]),
        (b"data:x\n\n", [b"x"]),
        (b"data:  x\n\n", [b" x"]),
        (b"data:\n\n", [b""]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": comment\n\ndata: x\n\n", [b"x"]),
        (b": comment\ndata: x\n\n", [b"x"]),
        (b"event: ping\n\n", []),
        (b"event: e\ndata: x\nid: 1\n\n", [b"x"]),
        (b"\n\n\n\ndata: x\n\n", [b"x"]),
        (b"database: x\n\n", []),
    ],
)
def test_lines_mean_what_the_standard_says(read: bytes, expected: list[bytes]) -> None:
    """WHATWG HTML, section 9.2.6."""
    assert (expected, False) == feed(read)


@pytest.mark.parametrize(
    ("reads", "unfinished"),
    [
        ([b""], False),
        ([b"data: x"], True),
        ([b"data: x\n"], True),
        ([b"data: x\r\n\r\n"], False),
        ([b"data: x\n\n", b"data: y"], True),
        ([b"data: x\n\n\n\n"], False),
        ([b"data: x\n\n\n"], False),
    ],
)
def test_bytes_of_an_event_without_its_end_are_noticed(reads: list[bytes], unfinished: bool) -> None:  # noqa: FBT001
    """A stream that stops there was cut off; blank lines are nothing."""
    assert unfinished == feed(*reads)[1]


def test_an_event_that_never_ends_is_refused() -> None:
    """Before it has eaten the memory."""
    stream = EventStream()
    half = b"data: " + b"x" * (MAX_EVENT_BYTES // 2)

    assert [] == list(stream.feed(half))
    with pytest.raises(EventTooLarge, match="bytes without the end of an event"):
        list(stream.feed(half))
