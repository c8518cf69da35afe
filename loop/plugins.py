"""Plugins by file name: a gate, metric or engine is one module whose stem is its name."""

import difflib
import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

from loop.errors import InputError

T = TypeVar("T")


def available(package: ModuleType) -> tuple[str, ...]:
    """The names of the plugins in `package`, sorted. Imports none of them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load(package: ModuleType, name: str, base: type[T]) -> type[T]:
    """The one concrete subclass of `base` defined in `package`'s module `name`.

    Raises InputError naming the known plugins and the closest match.
    """
    known = available(package)
    if name not in known:
        kind = package.__name__.rpartition(".")[2].removesuffix("s")
        raise InputError(f"no {kind} called {name!r}; known: {', '.join(known)}{closest(name, known)}")
    module = importlib.import_module(f"{package.__name__}.{name}")
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {base.__name__}, found {len(found)}")
    return found[0]


def closest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """A hint naming the closest known spelling, or nothing."""
    matches = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
