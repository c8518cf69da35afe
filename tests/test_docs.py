"""The documentation cannot rot: generated parts are fresh, links lead somewhere, every name is explained."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from loop import checks, engines, gates, metrics, plugins
from loop.analysis import tables
from loop.caveats import Caveat
from loop.gates import GateResult
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def test_generated_parts_are_fresh() -> None:
    """Help texts and tables of fields come from the code."""
    command = [sys.executable, str(REPOSITORY / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    """Relative links, read from the page that has them."""
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))

    assert [] == [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("package", [gates, metrics, engines, checks, tables], ids=lambda package: package.__name__)
def test_every_plugin_is_in_the_docs(package: object) -> None:
    """By its name."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    assert [] == [name for name in plugins.available(package) if f"`{name}`" not in text]  # type: ignore[arg-type]


def test_every_field_of_every_record_has_a_meaning_or_a_telling_name() -> None:
    """The generated tables are not full of holes."""
    text = (REPOSITORY / "docs" / "ledger.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `[^|]*` \| (.*) \|$", text, re.MULTILINE)
    explained = [name for name, meaning in rows if meaning]

    assert len(rows) > 60
    assert len(explained) / len(rows) > 0.4


def test_every_module_of_the_glossary_exists() -> None:
    """One home per word."""
    text = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    homes = re.findall(r"`(loop/[\w/]+(?:\.py|/))`", text)

    assert len(homes) > 15
    assert [] == [home for home in homes if not (REPOSITORY / home).exists()]


def test_every_reason_code_is_in_the_docs() -> None:
    """A person who sees a code must be able to look it up."""
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in [REPOSITORY / "loop" / "judge.py", *(REPOSITORY / "loop" / "gates").glob("*.py")]
    )
    codes = set(re.findall(r'reason="([a-z_]+)"', source)) | set(
        re.findall(r'_verdict\(\s*"\w+",\s*"([a-z_]+)"', source)
    )
    text = (REPOSITORY / "docs" / "ledger.md").read_text(encoding="utf-8")

    assert {"drift", "no_effect"} <= codes
    assert [] == sorted(code for code in codes if f"`{code}`" not in text)


def test_every_caveat_is_in_the_docs() -> None:
    """With what to do about it."""
    source = "".join(
        (REPOSITORY / "loop" / name).read_text(encoding="utf-8") for name in ("caveats.py", "disturbances.py")
    )
    codes = set(re.findall(r'code="([a-z_]+)"', source))
    text = (REPOSITORY / "docs" / "machine.md").read_text(encoding="utf-8")

    assert {"other_load", "few_requests"} <= codes
    assert [] == sorted(code for code in codes if f"| `{code}` |" not in text)


def test_the_records_that_are_shown_have_docstrings() -> None:
    """They are the words of the report."""
    assert GateResult.__doc__
    assert Caveat.__doc__
