"""What the events of each API mean, over real sockets: which chunks are tokens, how many, and what may be missing."""

import typing
from itertools import accumulate

import pytest

from loop import dialects, plugins
from loop.dialects import Dialect
from loop.suites import Suite
from tests.wire import (
    DONE,
    NUM_TOKENS,
    PAUSE_S,
    WORDS,
    Canned,
    Fakes,
    Send,
    Serve,
    chat,
    completion,
    data,
    event,
    http,
    native,
    quick,
    request,
    stream,
    usage_only,
)

pytest_plugins = ["tests.wire_fixtures"]

OPENAI = ["completions", "chat"]
IDS = list(range(500, 506))


@pytest.fixture(scope="module", autouse=True)
def _start(fakes: Fakes) -> None:
    """Side by side, before anything is timed."""
    fakes.ready(
        quick(),
        quick("no_usage"),
        quick("late_usage"),
        quick("late_usage", "big_first_chunk"),
        quick(flags=("--reasoning-tokens", "5")),
        quick(flags=("--skip-tokenizer-init",)),
    )


def span_ms(start_ns: int | None, end_ns: int | None) -> float:
    """Between two times that must both be there."""
    assert start_ns is not None
    assert end_ns is not None
    return (end_ns - start_ns) / 1e6


def test_a_suite_may_choose_every_dialect_there_is() -> None:
    """And no other."""
    chosen = typing.get_args(Suite.model_fields["dialect"].annotation)

    assert plugins.available(dialects) == tuple(sorted(typing.get_args(chosen[0])))
    assert len({plugins.load(dialects, name, Dialect).path for name in plugins.available(dialects)}) == 3


# chunks that are no tokens


def test_a_role_is_not_the_first_token(send: Send, canned: Canned) -> None:
    """It comes with an empty content, some time before the model has said anything."""
    port = canned(*stream(chat(role="assistant", content=""), chat(content="a"), chat(content="b", finish="length"),
                          usage_only(2) + DONE))  # fmt: skip

    (reply,), _ = send(port, request(num_tokens=2), dialect="chat")

    assert (None, "ab", 2, 1) == (reply.failure, reply.text, reply.num_tokens, reply.num_first_tokens)
    assert (reply.ttft_ms or 0) >= PAUSE_S * 1e3
    assert span_ms(reply.first_ns, reply.last_ns) == reply.tpot_ms


@pytest.mark.parametrize("dialect", OPENAI)
def test_chunks_without_text_or_growth_are_no_tokens(send: Send, canned: Canned, dialect: str) -> None:
    """Empty deltas, a finish reason alone, and the usage after the last token would stretch the time per token."""
    say = completion if dialect == "completions" else lambda text, **fields: chat(content=text, **fields)
    port = canned(*stream(say("a", usage=1), say("b", usage=2), say("", usage=2),
                          say("", usage=2, finish="length"), usage_only(2) + DONE))  # fmt: skip

    (reply,), _ = send(port, request(num_tokens=2), dialect=dialect)

    assert (None, "ab", 2, 1) == (reply.failure, reply.text, reply.num_tokens, reply.num_first_tokens)
    assert span_ms(reply.last_ns, reply.done_ns) >= 2 * PAUSE_S * 1e3
    assert 5 == reply.num_chunks


@pytest.mark.parametrize("dialect", OPENAI)
def test_a_token_without_text_is_one_if_the_server_counts_it(send: Send, canned: Canned, dialect: str) -> None:
    """Half of a character is held back until the other half is there; the model has worked for both."""
    say = completion if dialect == "completions" else lambda text, **fields: chat(content=text, **fields)
    port = canned(*stream(say("", usage=1), say("世", usage=2, finish="length") + usage_only(2) + DONE))

    (reply,), _ = send(port, request(num_tokens=2), dialect=dialect)

    assert (None, "世", 2, 1) == (reply.failure, reply.text, reply.num_tokens, reply.num_first_tokens)
    assert (reply.e2e_ms or 0) > (reply.ttft_ms or 0)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a"},
        {"reasoning": "a", "reasoning_content": "a"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "a", "arguments": None}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]},
    ],
    ids="+".join,
)
def test_whatever_a_parser_calls_it_it_was_generated(send: Send, canned: Canned, delta: dict[str, object]) -> None:
    """Dropped, a reasoning model's first token would seem to come after all its thoughts."""
    port = canned(*stream(chat(**delta), chat(content="b", finish="length") + usage_only(2) + DONE))

    (reply,), _ = send(port, request(num_tokens=2), dialect="chat")

    assert (None, "ab", 2, 1) == (reply.failure, reply.text, reply.num_tokens, reply.num_first_tokens)
    assert span_ms(reply.first_ns, reply.last_ns) > 0


def test_reasoning_and_answer_are_one_text(serve: Serve, send: Send) -> None:
    """A server that splits them says the same as one that does not."""
    plain, split = (send(port, dialect="chat")[0][0] for port in (serve(), serve(flags=("--reasoning-tokens", "5"))))

    assert (None, plain.text, NUM_TOKENS) == (split.failure, split.text, split.num_tokens)


# how many tokens a chunk holds


@pytest.mark.parametrize("dialect", OPENAI)
def test_several_tokens_in_the_first_read_are_counted_as_such(send: Send, canned: Canned, dialect: str) -> None:
    """Whether in one chunk or in two that arrive together."""
    say = completion if dialect == "completions" else lambda text, **fields: chat(content=text, **fields)
    one = stream(say("abc", usage=3), say("d", usage=4, finish="length") + usage_only(4) + DONE)
    two = stream(say("ab", usage=2) + say("c", usage=3), say("d", usage=4, finish="length") + usage_only(4) + DONE)

    for pieces in (one, two):
        (reply,), _ = send(canned(*pieces), request(num_tokens=4), dialect=dialect)
        assert (None, "abcd", 4, 3) == (reply.failure, reply.text, reply.num_tokens, reply.num_first_tokens)
        assert span_ms(reply.first_ns, reply.last_ns) == reply.tpot_ms


def test_native_chunks_that_arrive_together_are_one_first_read(send: Send, canned: Canned) -> None:
    """Also where the dialect has noticed that they repeat each other, and would keep them for later."""
    counts = [native(n, IDS[:n], text="x" * n) for n in range(1, 6)]
    port = canned(*stream(b"".join(counts), native(6, IDS, text="xxxxxx", last=True) + DONE))

    (reply,), _ = send(port, request(num_tokens=6))

    assert (None, 6, 5, "xxxxxx") == (reply.failure, reply.num_tokens, reply.num_first_tokens, reply.text)
    assert tuple(IDS) == reply.output_ids


@pytest.mark.parametrize("dialect", OPENAI)
def test_as_many_chunks_as_tokens_hold_one_each(serve: Serve, send: Send, dialect: str) -> None:
    """So counts at the end are enough: each chunk with text holds at least one, and together they hold all."""
    (reply,), _ = send(serve("late_usage"), dialect=dialect)

    assert (None, NUM_TOKENS) == (reply.failure, reply.num_tokens)
    assert 1 <= (reply.num_first_tokens or 0) <= NUM_TOKENS


@pytest.mark.parametrize("dialect", OPENAI)
def test_nobody_can_tell_how_many_tokens_fewer_chunks_hold(serve: Serve, send: Send, dialect: str) -> None:
    """Then there is no time per token, rather than a wrong one; the latency stands."""
    (reply,), _ = send(serve("late_usage", "big_first_chunk"), dialect=dialect)

    assert (None, NUM_TOKENS, None, None) == (
        reply.failure, reply.num_tokens, reply.num_first_tokens, reply.tpot_ms,
    )  # fmt: skip
    assert (reply.e2e_ms or 0) > 0


@pytest.mark.parametrize("dialect", OPENAI)
def test_a_server_that_counts_nothing_has_failed(serve: Serve, send: Send, dialect: str) -> None:
    """Its output length would be a guess, and a short answer would look fast."""
    (reply,), _ = send(serve("no_usage"), dialect=dialect)

    assert ("no_usage", None) == (reply.failure, reply.num_tokens)
    assert "the server did not count its tokens" in reply.error


def test_a_native_answer_without_counts_has_failed_too(send: Send, canned: Canned) -> None:
    """`meta_info` is where they should be."""
    port = canned(
        http(data({"text": "a", "output_ids": [5], "meta_info": {"finish_reason": {"type": "length"}}}) + DONE)
    )

    assert ["no_usage"] == [reply.failure for reply in send(port, request(num_tokens=1))[0]]


# native streams


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1, 1], [3, 1, 2], [1, 5], [6]], ids=str)
@pytest.mark.parametrize("cumulative", [True, False])
def test_cumulative_and_disjoint_ids_come_to_the_same(
    send: Send,
    canned: Canned,
    sizes: list[int],
    cumulative: bool,  # noqa: FBT001
) -> None:
    """Each chunk repeats what was said, or says only what is new: nobody tells the client which."""
    events = []
    for size, count in zip(sizes, accumulate(sizes), strict=True):
        start = 0 if cumulative else count - size
        text = "".join(f" {token}" for token in IDS[start:count])
        events.append(native(count, IDS[start:count], text=text, last=count == len(IDS)))
    port = canned(*stream(events[0], b"".join(events[1:]) + DONE))

    (reply,), _ = send(port, request(num_tokens=len(IDS)))

    assert (None, len(IDS), sizes[0]) == (reply.failure, reply.num_tokens, reply.num_first_tokens)
    assert ("".join(f" {token}" for token in IDS), tuple(IDS)) == (reply.text, reply.output_ids)


@pytest.mark.parametrize("flags", [(), ("--incremental-streaming-output",)], ids="".join)
def test_ids_without_text_are_tokens_all_the_same(serve: Serve, send: Send, flags: tuple[str, ...]) -> None:
    """A server without a tokenizer (`--skip-tokenizer-init`) sends no text at all."""
    (plain,), _ = send(serve())
    (reply,), _ = send(serve(flags=("--skip-tokenizer-init", *flags)))

    assert (None, "", NUM_TOKENS) == (reply.failure, reply.text, reply.num_tokens)
    assert plain.output_ids == reply.output_ids
    assert (reply.ttft_ms or 0) > 0


def test_the_last_token_is_the_last_one_counted(send: Send, canned: Canned) -> None:
    """A closing chunk that repeats everything is not a token."""
    events = [native(n, IDS[:n], text="x" * n) for n in range(1, 7)]
    port = canned(*stream(b"".join(events[:4]), events[4] + events[5], native(6, IDS, text="xxxxxx", last=True) + DONE))

    (reply,), _ = send(port, request(num_tokens=6))

    assert (None, 6) == (reply.failure, reply.num_tokens)
    assert span_ms(reply.first_ns, reply.last_ns) > 0
    assert span_ms(reply.last_ns, reply.done_ns) >= PAUSE_S * 1e3 / 2


# what goes wrong


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (chat(content="ab", finish="length") + usage_only(2) + DONE, None),
        (chat(content="ab", finish="length") + usage_only(2), "no_end_marker"),
        (chat(content="ab", finish="length") + DONE, "no_usage"),
        (chat(content="ab") + usage_only(2) + DONE, "truncated"),
        (chat(content="ab", finish="abort") + usage_only(2) + DONE, "aborted"),
        (chat(content="a", finish="stop") + usage_only(1) + DONE, "length_mismatch"),
        (chat(role="assistant", content="", finish="stop") + usage_only(0) + DONE, "truncated"),
        (chat(content="ab", finish="length") + usage_only(2, len(WORDS) - 2) + DONE, "prompt_mismatch"),
        (chat(content="ab", finish="length") + usage_only(2, len(WORDS) + 9) + DONE, None),
        (chat(content="a") + data({"error": {"message": "out of memory"}}) + DONE, "inband_error"),
        (b"event: error\n" + data({"error": "no"}) + DONE, "inband_error"),
        (chat(content=3) + DONE, "parse"),
        (chat(tool_calls={"index": 0}) + DONE, "parse"),
        (b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n' + DONE, "parse"),
        (b"data: " + b"[" * 100_000 + b"\n\n" + DONE, "parse"),
    ],
)
def test_a_chat_succeeds_only_when_everything_is_there(
    send: Send, canned: Canned, answer: bytes, failure: str | None
) -> None:
    """An error after HTTP 200 is an error; so is a prompt with fewer tokens than the message has."""
    (reply,), _ = send(canned(http(answer)), request(num_tokens=2), dialect="chat")

    assert failure == reply.failure


def test_a_template_may_trim_a_message(send: Send, canned: Canned) -> None:
    """White space around it is not counted on; what is in it is."""
    answer = chat(content="ab", finish="length") + usage_only(2) + DONE
    ids = (*WORDS, 10, 10, 10)

    (trimmed,), _ = send(canned(http(answer)), request(ids=ids, num_tokens=2), dialect="chat")
    (cut,), _ = send(canned(http(answer)), request(ids=(*WORDS, 301, 302), num_tokens=2), dialect="chat")

    assert (None, "prompt_mismatch") == (trimmed.failure, cut.failure)


def test_a_native_prompt_must_be_counted_exactly(send: Send, canned: Canned) -> None:
    """Its tokens were sent, so one more is as wrong as one less."""
    for count, failure in ((len(WORDS), None), (len(WORDS) + 1, "prompt_mismatch"), (None, "no_usage")):
        (reply,), _ = send(canned(http(event(prompt_tokens=count) + DONE)))
        assert failure == reply.failure
