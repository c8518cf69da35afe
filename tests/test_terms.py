"""The terms of a comparison: what makes rounds comparable, and what makes them not."""

from typing import Any

import pytest

from loop.environment import Environment
from loop.terms import Terms
from tests.brackets import host


def terms(*, model_sha256: str = "1" * 64, suite_sha256: str = "2" * 64, client: str = "c/1", **fields: Any) -> Terms:
    """Terms on a machine; `fields` replace what they name of it."""
    environment = Environment(host=host(**fields), model_sha256=model_sha256, engine_version="0.5.23")
    return Terms(environment=environment, suite_sha256=suite_sha256, engine="fake", client=client)


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"memory_bytes": 1}])
def test_what_a_machine_changes_by_itself_makes_it_no_other_machine(change: dict[str, Any]) -> None:
    """It boots; a virtual one may be given memory as it uses it."""
    assert terms().fingerprint == terms(**change).fingerprint
    assert [] == terms().differing(terms(**change))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"driver": "570"}, "driver: 570 there, None here"),
        ({"kernel": "6.2"}, "kernel: 6.2 there, 6.1 here"),
        ({"num_cpus": 4}, "num_cpus: 4 there, 2 here"),
        ({"machine": "other"}, "machine: other there, bench here"),
        ({"client": "c/0"}, "client: c/0 there, c/1 here"),
    ],
)
def test_everything_else_does_and_is_named(change: dict[str, Any], line: str) -> None:
    """Driver, kernel, cores, client: the message says which."""
    other = terms(**change)

    assert terms().fingerprint != other.fingerprint
    assert [line] == terms().differing(other)


@pytest.mark.parametrize("change", [{"model_sha256": "9" * 64}, {"suite_sha256": "9" * 64}])
def test_another_model_or_suite_measures_something_else(change: dict[str, str]) -> None:
    """By their hashes."""
    assert terms().fingerprint != terms(**change).fingerprint
    assert 1 == len(terms().differing(terms(**change)))
