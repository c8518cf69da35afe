"""What kind of work a kernel is: by its name, then by where it was launched from (rules in `categories.toml`)."""

import re
import tomllib
from functools import lru_cache
from pathlib import Path

RULES = Path(__file__).with_suffix(".toml")
OTHER = "other"


@lru_cache(maxsize=65536)
def categorize(kernel: str, location: str | None = None, *, operator: bool = False) -> str:
    """The category of a kernel (or, on a CPU, of an operator); `other` if no rule knows it."""
    if operator and (known := _first("operator", kernel)):
        return known
    return _first("name", kernel) or (location and _first("location", location)) or OTHER


def known_categories() -> tuple[str, ...]:
    """Every category, in the order of the rules."""
    named = [category for kind in ("name", "location", "operator") for category, _ in _rules()[kind]]
    return (*dict.fromkeys(named), OTHER)


def _first(kind: str, text: str) -> str | None:
    return next((category for category, pattern in _rules()[kind] if pattern.search(text)), None)


@lru_cache(maxsize=1)
def _rules() -> dict[str, tuple[tuple[str, re.Pattern[str]], ...]]:
    document = tomllib.loads(RULES.read_text(encoding="utf-8"))
    return {
        kind: tuple((rule["category"], re.compile("|".join(rule["any"]), re.IGNORECASE)) for rule in rules)
        for kind, rules in document.items()
    }
