"""Requests: salted alike in every arm, cut to exact lengths, and refused where the model cannot hold them."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.errors import SuiteError
from loop.fake_server.flags import SALT_PATTERN
from loop.prompts import Prompt
from loop.traffic import SALT_WORDS, check_requests, context_length, load_tokenizer, salt, timed_requests

SECRETS = st.binary(max_size=40)
NAMES = st.text("abcdefghij_0123456789", min_size=1, max_size=10)
KEYS = st.tuples(SECRETS, NAMES, st.integers(0, 9), st.integers(0, 200))


def prompt(text: str = "the cat sat on the mat " * 20, *, input_tokens: int | None = 16, output: int = 8) -> Prompt:
    """One prompt of a workload."""
    return Prompt(id="p", category="chat", text=text, max_new_tokens=output, input_tokens=input_tokens)


@given(KEYS)
def test_a_salt_has_one_shape(key: tuple[bytes, str, int, int]) -> None:
    """Eight words of five letters and a line end, so that every salt costs the same tokens."""
    assert re.fullmatch(SALT_PATTERN, salt(*key))


@given(KEYS)
def test_a_salt_is_the_same_in_every_arm(key: tuple[bytes, str, int, int]) -> None:
    """It depends on the round's secret and the request's place, and on nothing else."""
    assert salt(*key) == salt(*key)


def test_salts_differ_by_secret_workload_pass_and_place() -> None:
    """Four bits a word: among two thousand, next to no two are alike."""
    made = [
        salt(secret, workload, pass_index, index)
        for secret in (b"one", b"two")
        for workload in ("a", "b")
        for pass_index in range(5)
        for index in range(100)
    ]

    assert len(made) == len(set(made))


def test_a_known_salt() -> None:
    """HMAC-SHA256 of `w|0|1`: another one would make old rounds unrepeatable."""
    assert "islet ember knoll cedar ocean grove jetty delta\n" == salt(b"secret", "w", 0, 1)


def test_the_salt_words_are_sixteen_of_five_letters() -> None:
    """One per nibble."""
    assert (16, {5}) == (len(set(SALT_WORDS)), {len(word) for word in SALT_WORDS})


def test_timed_requests_have_exact_lengths_and_begin_with_their_salt(model: Path) -> None:
    """In the model's own tokens."""
    prompts = [prompt(input_tokens=24), prompt(input_tokens=80), prompt(input_tokens=31)]

    made = timed_requests(model, prompts, secret=b"s", workload="chat", pass_index=2)

    assert [24, 80, 31] == [len(request.input_ids) for request in made]
    assert ["chat-2-000", "chat-2-001", "chat-2-002"] == [request.rid for request in made]
    assert {(8, True)} == {(request.max_new_tokens, request.ignore_eos) for request in made}
    head = load_tokenizer(model).decode(list(made[1].input_ids))
    assert head.startswith(salt(b"s", "chat", 2, 1).strip()[:20])


def test_timed_requests_are_the_same_in_every_arm_and_others_in_every_pass(model: Path) -> None:
    """Token by token; and no two requests of a step share their beginning."""

    def ids(secret: bytes, pass_index: int) -> list[tuple[int, ...]]:
        made = timed_requests(model, [prompt()] * 4, secret=secret, workload="chat", pass_index=pass_index)
        return [request.input_ids for request in made]

    assert ids(b"s", 0) == ids(b"s", 0)
    assert 4 == len(set(ids(b"s", 0)))
    assert set() == set(ids(b"s", 0)) & set(ids(b"s", 1))
    assert set() == set(ids(b"s", 0)) & set(ids(b"t", 0))


def test_check_requests_are_unsalted_whole_and_may_stop(model: Path) -> None:
    """The same in every round, because their answers are compared."""
    text = "what is the capital of France?"

    (made,) = check_requests(model, [prompt(text, input_tokens=None)])

    assert tuple(load_tokenizer(model).encode(text).ids) == made.input_ids
    assert ("check-000", False) == (made.rid, made.ignore_eos)


def test_a_prompt_that_is_too_short_to_cut_is_refused(model: Path) -> None:
    """With both lengths."""
    (whole,) = timed_requests(
        model, [prompt("short", input_tokens=None)], secret=b"s", workload="chat", pass_index=0
    )  # fmt: skip
    length = len(whole.input_ids)

    with pytest.raises(SuiteError, match=f"prompt p has {length} tokens, {length + 1} are asked for"):
        timed_requests(
            model, [prompt("short", input_tokens=length + 1)], secret=b"s", workload="chat", pass_index=0
        )  # fmt: skip


def test_a_request_that_the_model_cannot_hold_is_refused(model: Path) -> None:
    """Input and output together must stay below its context."""
    limit = context_length(model)
    assert limit is not None

    assert 1 == len(check_requests(model, [prompt(input_tokens=16, output=limit - 17)]))
    with pytest.raises(SuiteError) as caught:
        check_requests(model, [prompt(input_tokens=16, output=limit - 16)])

    assert f"prompt p needs 16 + {limit - 16} tokens; {model} holds {limit}" in str(caught.value)
    assert "a model with a longer context" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192),
        ({"max_position_embeddings": 1, "text_config": {"max_position_embeddings": 2}}, 2),
        ({"text_config": None}, None),
        ({}, None),
    ],
)
def test_the_context_is_what_the_config_says(tmp_path: Path, config: dict[str, object], expected: int | None) -> None:
    """Of the text part where a model has several; None where it does not say."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert expected == context_length(tmp_path)


def test_a_model_that_does_not_say_refuses_nothing(model: Path, tmp_path: Path) -> None:
    """The server will know."""
    shutil.copy(model / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text("{}")

    assert 1 == len(check_requests(tmp_path, [prompt(output=1 << 20)]))


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """Requests are sent as token ids."""
    with pytest.raises(SuiteError, match=r"tokenizer\.json is missing: requests are sent as token ids"):
        check_requests(tmp_path, [prompt()])


@pytest.mark.parametrize("text", ["the cat sat on the mat " * 20, "naïve café — 世界 🙂 \u2028" * 20, "  \n\t x " * 40])
@pytest.mark.parametrize("input_tokens", [1, 7, 16, 33])
def test_a_cut_prompt_as_text_is_what_its_tokens_cover(model: Path, text: str, input_tokens: int) -> None:
    """For APIs that take messages: no half characters, and no fewer tokens than were asked for by more than the cut."""
    (made,) = timed_requests(
        model, [prompt(text, input_tokens=input_tokens)], secret=b"s", workload="chat", pass_index=0
    )

    assert made.text is not None
    assert (salt(b"s", "chat", 0, 0) + text).startswith(made.text)
    tokens = load_tokenizer(model).encode(made.text).ids
    assert made.input_ids[:-4] == tuple(tokens)[: len(made.input_ids[:-4])]
    assert "\ufffd" not in made.text


def test_a_whole_prompt_as_text_is_the_prompt(model: Path) -> None:
    """To the last character."""
    text = "  what is <|im_end|> \u2028 in 世界?\n\n"

    (made,) = check_requests(model, [prompt(text, input_tokens=None)])

    assert text == made.text
