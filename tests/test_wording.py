"""How a count is said."""

from pathlib import Path

import pytest

from loop.wording import count
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds"), (174, "174 rounds"), (-1, "-1 rounds")]
)
def test_one_is_said_without_an_s(number: int, said: str) -> None:
    """Only one is."""
    assert said == count(number, "round")


def test_the_report_counts_as_people_do() -> None:
    """No number stands before a fixed plural in the template."""
    template = Path(REPOSITORY, "loop", "templates", "round.md.j2").read_text()

    assert "}} pairs" not in template
    assert "}} CPUs" not in template
