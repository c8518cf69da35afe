"""The base of everything `loop` stores: frozen, closed to unknown fields, finite numbers only."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from loop.errors import InputError, LoopError
from loop.plugins import closest


class Record(BaseModel):
    """A value. Never mutated; a later stage returns a new one.

    Missing is `None`, never 0 or NaN: a NaN would be written as `null` and not load back into a float.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
        serialize_by_alias=True,
        validate_by_alias=True,
        validate_by_name=True,
        protected_namespaces=(),  # `model_sha256` is a word of our field
    )

    def document(self) -> dict[str, Any]:
        """This record as plain JSON values."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """Hex sha256 of the canonical JSON of this record."""
        return sha256_of(self.document())


RecordT = TypeVar("RecordT", bound=Record)


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, UTF-8. Raises ValueError on NaN.

    `loop/launch.py` holds the same line, because it may import only the standard library;
    a test keeps the two equal.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_toml(path: Path, kind: type[RecordT], error: type[InputError]) -> RecordT:
    """The record in a TOML file; raises `error` naming the file, the field and the closest known key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise error(f"{path} is not valid TOML: {problem}", next="mend the file, then repeat the command") from None
    return parse(document, kind, error, where=str(path))


def parse(document: Any, kind: type[RecordT], error: type[LoopError], *, where: str) -> RecordT:
    """`document` as a record of `kind`; raises `error` with one line per wrong field, worded for a person."""
    try:
        return kind.model_validate(document)
    except ValidationError as problem:
        lines = [_describe(item, kind) for item in problem.errors(include_url=False)]
        raise error("\n".join([f"{where} is not a valid {kind.__name__.lower()}:", *lines])) from None


def _describe(item: Any, kind: type[Record]) -> str:
    """One validation problem as `field: what is wrong`, with the closest known key for an unknown one."""
    location = [str(part) for part in item["loc"]]
    field = ".".join(location)
    if item["type"] != "extra_forbidden":
        return f"  {field}: {item['msg']}"
    known = _fields_at(kind, location[:-1])
    return f"  {field}: no such field; known: {', '.join(known)}{closest(location[-1], known)}"


def _fields_at(kind: type[Record], location: list[str]) -> list[str]:
    """The field names of the record found by walking `location` down from `kind`."""
    current: type[Record] = kind
    for part in location:
        field = next((f for name, f in current.model_fields.items() if part in (name, f.alias)), None)
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, Record)), current)
    return sorted(f.alias or name for name, f in current.model_fields.items())
