"""Every command-line option of an installed SGLang, read from its source without importing it.

SGLang declares its options as annotated fields of `ServerArgs` (one class up to 0.5.18, `arg_groups/fields/*.py`
from 0.5.23 on) plus some hand-written `parser.add_argument` calls. Importing them would import torch (20 s);
the syntax tree has all a validator needs and takes a second.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from loop.errors import BundleError
from loop.plugins import closest
from loop.record import Record

ArgValue = bool | int | float | str | tuple[bool | int | float | str, ...] | dict[str, Any]


class Flag(Record):
    """One option as argparse knows it."""

    option: str
    """The exact spelling, `--like-this`."""
    dest: str
    """The field it sets, as `/server_info` names it."""
    kind: str
    """`switch` (no value), `toggle` (`--x`/`--no-x`), `int`, `float`, `str`, `list` (values after one option), or
    `repeat` (the option once per value)."""
    choices: tuple[str, ...] | None = None
    """Allowed values, or None where they are open or known only at run time."""
    deprecated: bool = False


def read_flags(package: Path) -> dict[str, Flag]:
    """Option spelling → Flag for the `sglang` package directory. Raises BundleError if it is not one."""
    source = package / "srt" / "server_args.py"
    if not source.is_file():
        raise BundleError(f"{package} is not an sglang package: it has no srt/server_args.py")
    tree = _parse(source)
    constants: dict[str, Any] = {}
    for path in (package / "srt/model_executor/cuda_graph_config.py", package / "srt/arg_groups/choices.py", source):
        if path.is_file():
            constants.update(_constants(_parse(path), constants))
    fields = sorted((package / "srt/arg_groups/fields").glob("*.py"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs"]
    scopes = [(node, constants) for node in classes]
    for path in fields:
        module = _parse(path)
        scope = {**constants, **_constants(module, constants)}
        scopes += [(node, scope) for node in module.body if isinstance(node, ast.ClassDef)]
    found = [flag for node, scope in scopes for flag in _declared(node, scope)]
    found += _handwritten(tree, constants)
    return {flag.option: flag for flag in found}


def to_argv(flags: Mapping[str, Flag], name: str, value: ArgValue) -> list[str]:
    """`name = value` of a bundle as argv; raises BundleError on an unknown option or an impossible value.

    Spellings must be exact: argparse would accept an abbreviation, which would slip past the deny list.
    """
    flag = flags.get(f"--{name}")
    if flag is None:
        raise BundleError(f"--{name} is not an option of the installed engine{closest(name, _names(flags))}")
    if flag.kind in ("switch", "toggle"):
        if not isinstance(value, bool):
            raise BundleError(f"--{name} takes true or false, not {value!r}")
        return [flag.option] if value else ([f"--no-{name}"] if flag.kind == "toggle" else [])
    if isinstance(value, bool):
        raise BundleError(f"--{name} needs a value ({flag.kind}), not {str(value).lower()}")
    if isinstance(value, dict):
        if flag.kind != "str" or flag.choices is not None:
            raise BundleError(f"--{name} takes {_wanted(flag)}, not a table")
        return [flag.option, json.dumps(value, sort_keys=True)]
    values = list(value) if isinstance(value, tuple | list) else [value]
    if len(values) != 1 and flag.kind not in ("list", "repeat"):
        raise BundleError(f"--{name} takes one value, not {len(values)}")
    checked = [_checked(flag, name, item) for item in values]
    return (
        [part for item in checked for part in (flag.option, item)] if flag.kind == "repeat" else [flag.option, *checked]
    )


def _wanted(flag: Flag) -> str:
    return f"one of {', '.join(flag.choices)}" if flag.choices else flag.kind


def _checked(flag: Flag, name: str, value: float | str) -> str:
    """One value in argparse's spelling, checked against the option's type and choices."""
    if flag.kind in ("int", "float"):
        try:
            int(str(value)) if flag.kind == "int" else float(value)
        except ValueError:
            raise BundleError(f"--{name} takes {flag.kind}, not {value!r}") from None
    if flag.choices is not None and str(value) not in flag.choices:
        hint = closest(str(value), flag.choices)
        raise BundleError(f"--{name} takes one of {', '.join(flag.choices)}; not {value!r}{hint}")
    if str(value).startswith("--"):
        raise BundleError(f"--{name} cannot be {value!r}: argparse would read another option")
    return str(value)


def _names(flags: Mapping[str, Flag]) -> list[str]:
    return [option.removeprefix("--") for option in flags]


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _constants(module: ast.Module, known: Mapping[str, Any]) -> dict[str, Any]:
    """Module-level names and `Class.attribute`s whose value can be told from the text."""
    found: dict[str, Any] = {}
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                    name = inner.targets[0].id
                    found[f"{node.name}.{name}"] = _value(inner.value, {**known, **found})
        else:
            for name, expression in _assignments(node):
                found[name] = _value(expression, {**known, **found})
    return {name: value for name, value in found.items() if value is not None}


def _assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _value(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of an expression built of literals and known names, or None where it cannot be told."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        return known.get(ast.unparse(node))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        items: list[Any] = []
        for element in node.elts:
            value = _value(element.value if isinstance(element, ast.Starred) else element, known)
            if value is None and not (isinstance(element, ast.Constant)):
                return None
            items += list(value) if isinstance(element, ast.Starred) else [value]
        return items
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, known), _value(node.right, known)
        return left + right if isinstance(left, list) and isinstance(right, list) else None
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("list", "set", "tuple", "sorted", "frozenset"):
        return _value(node.args[0], known) if len(node.args) == 1 else None
    return None


def _declared(owner: ast.ClassDef, known: Mapping[str, Any]) -> Iterator[Flag]:
    """The options of the annotated fields of a class: `name: A[type, Arg(...)] = default`."""
    for node in owner.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        annotation = node.annotation
        if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) in ("A", "Annotated")):
            continue
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        type_text, metadata = ast.unparse(parts[0]), parts[1:]
        call = next((m for m in metadata if isinstance(m, ast.Call) and ast.unparse(m.func) == "Arg"), None)
        options = {k.arg: k.value for k in call.keywords if k.arg} if call else {}
        if _value(options["no_cli"], known) if "no_cli" in options else not metadata:
            continue
        dest = node.target.id
        name = _value(options["cli_name"], known) if "cli_name" in options else f"--{dest.replace('_', '-')}"
        aliases = _value(options["aliases"], known) if "aliases" in options else []
        action = ast.unparse(options["action"]) if "action" in options else ""
        kind = _kind(type_text, action, multiple="nargs" in options)
        for option in [name, *(aliases or [])]:
            yield Flag(option=option, dest=dest, kind=kind, choices=_choices(type_text, options, known))


def _handwritten(tree: ast.Module, known: Mapping[str, Any]) -> list[Flag]:
    """The options of `parser.add_argument(...)` calls."""
    found = []
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument"):
            continue
        options = {k.arg: k.value for k in call.keywords if k.arg}
        action = ast.unparse(options["action"]) if "action" in options else ""
        type_text = ast.unparse(options["type"]) if "type" in options else "str"
        for argument in call.args:
            if not (isinstance(argument, ast.Constant) and str(argument.value).startswith("--")):
                continue
            option = str(argument.value)
            dest = _value(options["dest"], known) if "dest" in options else option[2:].replace("-", "_")
            kind = _kind(type_text, action, multiple="nargs" in options)
            choices = _choices(type_text, options, known)
            deprecated = "Deprecated" in action
            found.append(Flag(option=option, dest=dest, kind=kind, choices=choices, deprecated=deprecated))
    return found


def _kind(type_text: str, action: str, *, multiple: bool) -> str:
    """How many values an option takes and of what type, from its annotation and action."""
    if "BooleanOptional" in action:
        return "toggle"
    if "store_true" in action or "StoreTrue" in action:
        return "switch"
    bare = re.sub(r"^Optional\[(.*)\]$", r"\1", type_text).removesuffix(" | None")
    if bare == "bool" and not action:
        return "switch"
    if multiple or re.match(r"(List|list|Union\[set)\b", bare):
        return "list"
    return bare if bare in ("int", "float") else "str"


def _choices(type_text: str, options: Mapping[str, ast.expr], known: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Allowed values from `choices=` or a `Literal[...]` annotation."""
    listed = _value(options["choices"], known) if "choices" in options else None
    if listed is None:
        literal = re.fullmatch(r"(?:Optional\[)?Literal\[(.*?)\]\]?(?: \| None)?", type_text)
        listed = ast.literal_eval(f"[{literal.group(1)}]") if literal else None
    return tuple(str(item) for item in listed if item is not None) if listed else None
