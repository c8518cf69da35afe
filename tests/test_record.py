"""Records: one byte form, finite numbers, and errors that name the field that was meant."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop import launch, record
from loop.bundles import Bundle
from loop.errors import BundleError, InputError
from loop.record import Record, canonical_json, parse, read_toml, sha256_of, sha256_of_file
from loop.workspace import Settings

TEXTS = st.text(st.characters(codec="utf-8"))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    SCALARS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
    max_leaves=12,
)


class Number(Record):
    """A float and nothing else."""

    value: float


@given(JSON)
def test_launcher_and_records_have_the_same_canonical_json(value: Any) -> None:
    """The launcher proves hashes that records made, so the bytes must be the same."""
    assert record.canonical_json(value) == launch.canonical_json(value)


@given(JSON)
def test_canonical_json_reads_back_as_the_same_value(value: Any) -> None:
    """Nothing is lost on the way to the one byte form, whatever the order of keys."""
    assert value == json.loads(canonical_json(value))


@given(st.dictionaries(TEXTS, st.integers(), min_size=2))
def test_the_order_of_keys_changes_no_hash(value: dict[str, int]) -> None:
    """Two dictionaries that are equal hash equally."""
    backwards = dict(reversed(list(value.items())))

    assert sha256_of(value) == sha256_of(backwards)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    """By both writers and by every record."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.canonical_json({"a": [value]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        launch.canonical_json({"a": [value]})
    with pytest.raises(InputError, match="value: Input should be a finite number"):
        parse({"value": value}, Number, InputError, where="it")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_being_stored(value: float) -> None:
    """To the last bit."""
    stored = Number(value=value).model_dump_json()

    assert value == Number.model_validate_json(stored).value


def test_a_record_cannot_be_changed() -> None:
    """A later stage makes a new one."""
    number = Number(value=1.0)

    with pytest.raises(ValueError, match="frozen"):
        number.value = 2.0  # type: ignore[misc]


def test_an_unknown_field_names_the_known_ones_and_the_closest(tmp_path: Path) -> None:
    """With the file it stands in."""
    path = tmp_path / "bundle.toml"
    path.write_text('schema = "loop.bundle/1"\nhypotesis = "a typo"\n')

    with pytest.raises(BundleError) as caught:
        read_toml(path, Bundle, BundleError)

    lines = str(caught.value).splitlines()
    assert f"{path} is not a valid bundle:" == lines[0]
    known = (
        "applies_to, engaged, expect, hypothesis, kernel, model, numerics, overlay, parent, patch, plugin, schema, "
        "server, title"
    )
    assert f"  hypotesis: no such field; known: {known}; did you mean 'hypothesis'?" in lines
    assert "  hypothesis: Field required" in lines


def test_a_nested_unknown_field_names_what_its_own_table_knows(tmp_path: Path) -> None:
    """Not what the file's top level knows."""
    path = tmp_path / "bundle.toml"
    path.write_text('schema = "loop.bundle/1"\nhypothesis = "x"\n[server]\narg = { a = 1 }\n')

    with pytest.raises(BundleError) as caught:
        read_toml(path, Bundle, BundleError)

    assert "  server.arg: no such field; known: args, env, unset; did you mean 'args'?" in str(caught.value)


def test_an_unknown_field_of_an_optional_table_names_what_that_table_knows(tmp_path: Path) -> None:
    """`[expect]` may be absent; where it is not, its fields are checked too."""
    path = tmp_path / "bundle.toml"
    path.write_text('schema = "loop.bundle/1"\nhypothesis = "x"\n[expect]\nmetrics = "e2e"\neffect_pct = 1.0\n')

    with pytest.raises(BundleError) as caught:
        read_toml(path, Bundle, BundleError)

    known = "effect_pct, metric, workload"
    assert f"  expect.metrics: no such field; known: {known}; did you mean 'metric'?" in str(caught.value)


def test_an_unknown_field_of_one_device_names_what_a_device_knows(tmp_path: Path) -> None:
    """The table's name is the device's, which is anybody's."""
    path = tmp_path / "loop.toml"
    path.write_text('schema = "loop.workspace/1"\n[device.cpu]\nsigma_pct = 4.0\n')

    with pytest.raises(InputError) as caught:
        read_toml(path, Settings, InputError)

    known = "bf16_tflops, fp4_tflops, fp8_tflops, memory_bandwidth_gb_per_s, memory_gb, original, sigma_prior_pct"
    assert f"  device.cpu.sigma_pct: no such field; known: {known}" in str(caught.value)


def test_files_that_are_no_toml_are_named(tmp_path: Path) -> None:
    """Missing, malformed, and not UTF-8: each says so, and none shows a traceback."""
    path = tmp_path / "bundle.toml"
    with pytest.raises(BundleError, match="does not exist"):
        read_toml(path, Bundle, BundleError)
    path.write_text("schema = \n")
    with pytest.raises(BundleError, match=r"bundle\.toml is not valid TOML: .*line 1"):
        read_toml(path, Bundle, BundleError)
    path.write_bytes(b'title = "\xff"\n')
    with pytest.raises(BundleError, match=r"bundle\.toml is not valid TOML"):
        read_toml(path, Bundle, BundleError)


def test_a_file_hashes_to_what_its_bytes_hash_to(tmp_path: Path) -> None:
    """Read in blocks, the same as at once."""
    path = tmp_path / "file"
    path.write_bytes(canonical_json(list(range(100_000))))

    assert sha256_of(list(range(100_000))) == sha256_of_file(path)
