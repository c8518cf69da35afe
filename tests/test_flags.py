"""Options of the installed engine, and how a bundle's values become argv."""

import importlib.util
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.engines.fake import Fake
from loop.errors import BundleError
from loop.fake_server.flags import FAULTS, build_parser
from loop.flags import Flag, read_flags, to_argv


@lru_cache
def installed() -> Mapping[str, Flag]:
    """The options of the installed SGLang."""
    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.submodule_search_locations is not None
    return read_flags(Path(found.submodule_search_locations[0]))


def flags(*declared: Flag) -> dict[str, Flag]:
    """A few options of each kind, and what a test adds."""
    some = (
        Flag(option="--quiet", dest="quiet", kind="switch"),
        Flag(option="--tf32", dest="tf32", kind="toggle"),
        Flag(option="--num-steps", dest="num_steps", kind="int"),
        Flag(option="--fraction", dest="fraction", kind="float"),
        Flag(option="--backend", dest="backend", kind="str", choices=("triton", "flashinfer")),
        Flag(option="--config", dest="config", kind="str"),
        Flag(option="--sizes", dest="sizes", kind="list"),
        Flag(option="--fault", dest="fault", kind="repeat"),
    )
    return {flag.option: flag for flag in (*some, *declared)}


def refusal(name: str, value: Any) -> str:
    """What `to_argv` says about a value that cannot be."""
    with pytest.raises(BundleError) as caught:
        to_argv(flags(), name, value)
    return str(caught.value)


# the installed engine


def test_all_options_of_the_installed_engine_are_found() -> None:
    """There are more than five hundred; a parser that lost a file would find far fewer."""
    assert len(installed()) > 500
    assert [] == [option for option, flag in installed().items() if option != flag.option or option[:2] != "--"]


@pytest.mark.parametrize(
    ("option", "dest", "kind"),
    [
        ("--disable-radix-cache", "disable_radix_cache", "switch"),
        ("--trust-remote-code", "trust_remote_code", "switch"),
        ("--enable-fused-qk-norm-rope", "enable_fused_qk_norm_rope", "toggle"),
        ("--chunked-prefill-size", "chunked_prefill_size", "int"),
        ("--max-running-requests", "max_running_requests", "int"),
        ("--mem-fraction-static", "mem_fraction_static", "float"),
        ("--schedule-conservativeness", "schedule_conservativeness", "float"),
        ("--attention-backend", "attention_backend", "str"),
        ("--model-path", "model_path", "str"),
        ("--cuda-graph-bs-decode", "cuda_graph_bs_decode", "list"),
        ("--lora-target-modules", "lora_target_modules", "list"),
        ("--tp-size", "tp_size", "int"),
        ("--tensor-parallel-size", "tp_size", "int"),
    ],
)
def test_known_options_have_their_field_and_their_kind(option: str, dest: str, kind: str) -> None:
    """One or two of each kind, an alias among them."""
    flag = installed()[option]

    assert (dest, kind) == (flag.dest, flag.kind)


@pytest.mark.parametrize(
    ("option", "some"),
    [
        ("--attention-backend", {"triton", "torch_native", "flashinfer", "fa3"}),
        ("--kv-cache-dtype", {"auto", "fp8_e4m3"}),
        ("--schedule-policy", {"lpm", "fcfs"}),
        ("--disaggregation-mode", {"null", "prefill", "decode"}),
    ],
)
def test_known_options_have_their_choices(option: str, some: set[str]) -> None:
    """Also where they are named in a constant of another module."""
    assert set() == some - set(installed()[option].choices or ())


def test_open_options_have_no_choices() -> None:
    """A path can be anything, and a plugin may add a sampling backend."""
    assert installed()["--model-path"].choices is None
    assert installed()["--sampling-backend"].choices is None


def test_what_is_no_sglang_is_refused(tmp_path: Path) -> None:
    """With the directory and what it lacks."""
    with pytest.raises(BundleError, match=r"is not an sglang package: it has no srt/server_args\.py"):
        read_flags(tmp_path)


# the fake engine


def test_the_fake_engine_knows_the_options_of_its_own_parser() -> None:
    """Whatever the parser has but `--help`, with the same choices."""
    found = Fake(python="python3").flags
    actions = build_parser()._actions

    options = {option for action in actions for option in action.option_strings if option.startswith("--")}
    assert options - {"--help"} == set(found)
    assert tuple(FAULTS) == found["--fault"].choices
    kinds = {name: found[f"--{name}"].kind for name in ("fault", "disable-radix-cache", "inert-number", "cache-file")}
    expected = {"fault": "repeat", "disable-radix-cache": "switch", "inert-number": "int", "cache-file": "str"}
    assert expected == kinds


# values to argv


@pytest.mark.parametrize(
    ("name", "value", "argv"),
    [
        ("quiet", True, ["--quiet"]),
        ("quiet", False, []),
        ("tf32", True, ["--tf32"]),
        ("tf32", False, ["--no-tf32"]),
        ("num-steps", 8, ["--num-steps", "8"]),
        ("num-steps", -1, ["--num-steps", "-1"]),
        ("fraction", 0.85, ["--fraction", "0.85"]),
        ("fraction", 1, ["--fraction", "1"]),
        ("backend", "triton", ["--backend", "triton"]),
        ("config", {"b": 1, "a": [True]}, ["--config", '{"a": [true], "b": 1}']),
        ("sizes", [1, 2, 4], ["--sizes", "1", "2", "4"]),
        ("sizes", 8, ["--sizes", "8"]),
        ("fault", ["slow", "crlf"], ["--fault", "slow", "--fault", "crlf"]),
        ("fault", "slow", ["--fault", "slow"]),
    ],
)
def test_values_become_argv(name: str, value: Any, argv: list[str]) -> None:
    """Every kind as argparse reads it."""
    assert argv == to_argv(flags(), name, value)


def test_an_abbreviation_is_refused() -> None:
    """Argparse would take `--num` for `--num-steps`, past the deny list."""
    assert "--num-step is not an option of the installed engine; did you mean 'num-steps'?" == refusal("num-step", 1)
    assert "is not an option of the installed engine" in refusal("num", 1)


@pytest.mark.parametrize("name", ["num_steps", "--num-steps", "Num-Steps", "num-steps ", "num-steps=1", "no-tf32", ""])
def test_other_spellings_are_refused(name: str) -> None:
    """Exact or not at all."""
    assert "is not an option of the installed engine" in refusal(name, 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("quiet", 1, "--quiet takes true or false, not 1"),
        ("quiet", "yes", "--quiet takes true or false, not 'yes'"),
        ("tf32", "no", "--tf32 takes true or false, not 'no'"),
        ("num-steps", True, "--num-steps needs a value (int), not true"),
        ("config", False, "--config needs a value (str), not false"),
        ("num-steps", "many", "--num-steps takes int, not 'many'"),
        ("num-steps", 2.5, "--num-steps takes int, not 2.5"),
        ("fraction", "half", "--fraction takes float, not 'half'"),
        ("num-steps", [1, 2], "--num-steps takes one value, not 2"),
        (
            "backend",
            "flash-infer",
            "--backend takes one of triton, flashinfer; not 'flash-infer'; did you mean 'flashinfer'?",
        ),
    ],
)
def test_impossible_values_are_refused(name: str, value: Any, message: str) -> None:
    """Here in a second, and not by a server that dies a minute later."""
    assert message == refusal(name, value)


@pytest.mark.parametrize("name", ["num-steps", "fraction", "backend"])
def test_a_table_is_no_value_of_an_option_that_is_not_json(name: str) -> None:
    """`num-steps = { a = 1 }` would reach argparse as text that is no number."""
    assert f"--{name}" in refusal(name, {"a": 1})


@pytest.mark.parametrize("name", ["num-steps", "config"])
def test_an_empty_list_is_no_value(name: str) -> None:
    """It would leave the option without any."""
    assert f"--{name}" in refusal(name, [])


@pytest.mark.parametrize(
    ("name", "value"), [("sizes", ["1", "--port", "80"]), ("sizes", ["--port"]), ("config", "--port=80")]
)
def test_a_value_cannot_smuggle_another_option_past_the_deny_list(name: str, value: Any) -> None:
    """What looks like an option would be read as one, and `--port` is denied."""
    assert f"--{name}" in refusal(name, value)


def test_an_engine_refuses_what_it_denies_by_field_and_by_alias() -> None:
    """A denied option is denied in every spelling that sets it."""
    denied = Fake(python="python3").denied

    assert {"host", "port", "model_path", "served_model_name"} <= set(denied)


VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="-\0"), min_size=1),
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(), max_size=3),
)


@given(st.sampled_from(sorted(flags())), VALUES)
def test_any_value_is_argv_or_a_refusal_that_names_the_option(option: str, value: Any) -> None:
    """Nothing else escapes."""
    try:
        argv = to_argv(flags(), option.removeprefix("--"), value)
    except BundleError as problem:
        assert option in str(problem)  # noqa: PT017 - either way is right
    else:
        assert argv == [] or argv[0] in (option, f"--no-{option[2:]}")
        assert all(isinstance(part, str) for part in argv)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(), max_size=4))
def test_json_options_get_the_same_json_whatever_its_order(value: dict[str, int]) -> None:
    """The order of keys must not make another command line."""
    backwards = dict(reversed(list(value.items())))

    (_, text) = to_argv(flags(), "config", value)

    assert [text] == to_argv(flags(), "config", backwards)[1:]
    assert value == json.loads(text)
