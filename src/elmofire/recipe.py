"""Tables read from TOML or JSON become frozen dataclasses, strictly: nothing unknown, nothing of a wrong type.

TOML has no null: there the string "none" stands for it, in fields that may be None.
"""

import copy
import difflib
import json
import reprlib
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from elmofire.errors import RecipeError

Table = TypeVar("Table")

_NONE = "none"

_ELSEWHERE = {"lr": "rate", "learning_rate": "rate", "batch_size": "batch_tokens"}  # as other programs call them
_WHERE_LISTED = (
    "`elmofire recipes NAME` prints a recipe with its settings, docs/reference/recipes.md says what each means"
)
_LISTED = 20  # unknown keys of a table: a file from outside may have any number
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong = 3, 60, 60


def shown(value: object) -> str:
    """A value for an error's text: what comes from outside may be huge, or nested very deeply.

    >>> shown([[1, 32], list(range(1000))])
    '[[1, 32], [0, 1, 2, 3, 4, 5, ...]]'
    """
    text = _REPR.repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def named(name: str) -> str:
    """A name from outside for an error's text: on one line, and not too long.

    >>> named("layers\\nerror: none")
    'layers\\\\nerror: none'
    """
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 100 else f"{text[:97]}..."


def build(kind: type[Table], table: Mapping[str, Any], *, where: str = "") -> Table:
    """Fill the dataclass `kind` from `table`; every unknown key and wrong type is reported, all at once.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     cells: int
    >>> build(Size, {"cells": 8})
    Size(cells=8)
    """
    problems: list[str] = []
    built = _fill(kind, table, "", problems)
    if problems:
        raise RecipeError(f"{where}: {'; '.join(problems)}" if where else "; ".join(problems))
    return built


def _fill(kind: type[Table], table: Mapping[str, Any], prefix: str, problems: list[str]) -> Table:
    known = {field.name: field for field in fields(cast(Any, kind))}
    unknown = [key for key in table if key not in known]
    for key in unknown[:_LISTED]:
        near = difflib.get_close_matches(key[:100], known, n=1)
        problems.append(f"unknown key `{prefix}{named(key)}`" + (f", did you mean `{near[0]}`?" if near else ""))
    if len(unknown) > _LISTED:
        problems.append(f"{len(unknown) - _LISTED} more unknown keys")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    before = len(problems)
    for name, field in known.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], f"{prefix}{name}", problems)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.append(f"`{prefix}{name}` is missing")
    if len(problems) > before:
        return cast(Table, None)  # never seen: `build` raises
    try:
        return kind(**values)
    except RecipeError as error:
        problems.append(f"`{prefix[:-1]}`: {error}" if prefix else str(error))
        return cast(Table, None)


def _convert(hint: Any, value: Any, name: str, problems: list[str]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and (value is None or (value == _NONE and str not in arguments)):
            return None
        hint = next(argument for argument in arguments if argument is not type(None))
        return _convert(hint, value, name, problems)
    if origin is tuple and isinstance(value, list | tuple):
        items = list(cast("list[Any]", value))
        each = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
        if len(items) == len(each):
            return _convert_items(each, items, name, problems)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return _fill(cast("type[Any]", hint), cast("Mapping[str, Any]", value), f"{name}.", problems)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 1000:
        return float(value)
    plain = hint if isinstance(hint, type) else None
    if plain is not None and isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
        return cast(Any, value)
    problems.append(
        f"`{name}` is {shown(cast(object, value))}, but should be of type {getattr(hint, '__name__', hint) if plain else hint}"
    )
    return None


def _convert_items(hints: list[Any], items: list[Any], name: str, problems: list[str]) -> tuple[Any, ...]:
    """The items of a list, up to the first wrong one."""
    before = len(problems)
    converted: list[Any] = []
    for k, (hint, item) in enumerate(zip(hints, items, strict=True)):
        converted.append(_convert(hint, item, f"{name}[{k}]", problems))
        if len(problems) > before:
            break
    return tuple(converted)


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file; an error names the file and the line."""
    data = path.read_bytes()
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{path}: is not UTF-8 (at line {line})") from None
    except (ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: {error}") from None


def override(table: Mapping[str, Any], kind: type[Any], settings: Sequence[str]) -> dict[str, Any]:
    """The table of a `kind` with settings changed, each `key=value` or `section.key=value`; of two for one key the last counts.

    A value is read as its field's type: numbers, true or false, strings as they are, lists as TOML, `none` for nothing.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     cells: int
    ...     clip: float | None = 3.0
    >>> override({"cells": 8}, Size, ["cells=16", "clip=none"])
    {'cells': 16, 'clip': None}
    """
    known = dict(_paths(kind, ""))
    changed = copy.deepcopy(dict(table))
    problems: list[str] = []
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        found = _named_by(key, known)
        if not equals:
            problems.append(f"`{named(setting)}` is no setting: they are given as key=value")
        elif not found:
            problems.append(f"unknown setting `{named(key)}`{_nearest(key, known)}")
        elif len(found) > 1:
            problems.append(f"`{named(key)}` is one of {', '.join(f'`{path}`' for path in found)}; say which")
        else:
            value = _parsed(known[found[0]], text)
            _convert(known[found[0]], value, found[0], problems)
            _put(changed, found[0], value, problems)
    if problems:
        unknown = any(problem.startswith("unknown setting") for problem in problems)
        raise RecipeError("; ".join(problems), hint=_WHERE_LISTED if unknown else "")
    return changed


def _paths(kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Every setting of a dataclass and of those inside it: `section.key` and its type."""
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            yield from _paths(cast("type[Any]", hint), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", hint


def _named_by(key: str, known: Iterable[str]) -> list[str]:
    """The settings that a key may mean: itself, or all that end in it."""
    return [key] if key in known else [path for path in known if path.endswith(f".{key}")]


def _nearest(key: str, known: Iterable[str]) -> str:
    names = {part: path for path in known for part in (path, path.rpartition(".")[2])}
    meant = _ELSEWHERE.get(key.rpartition(".")[2], "")
    near = [meant] if meant in names else difflib.get_close_matches(key[:100], names, n=1)
    return f", did you mean `{names[near[0]]}`?" if near else ""


def _parsed(hint: Any, text: str) -> Any:
    """The value that a text stands for; what cannot be read stays text, and is then of a wrong type."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        if type(None) in arguments and text in (_NONE, "null"):
            return None
        hint = next(argument for argument in arguments if argument is not type(None))
    if hint is str:
        return text
    if hint is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        if hint in (int, float):
            return hint(text)
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if list(read) == ["value"] else text


def _put(table: dict[str, Any], path: str, value: Any, problems: list[str]) -> None:
    *sections, name = path.split(".")
    for section in sections:
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            problems.append(f"`{section}` is {shown(cast(object, inner))}, but should be a section")
            return
        table = cast("dict[str, Any]", inner)
    table[name] = value


def text_of(recipe: object) -> str:
    """A dataclass as TOML that `build` reads back as an equal one; what is None by default and by value is left out.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Size:
    ...     cells: int
    ...     clip: float | None = 3.0
    >>> print(text_of(Size(16, None)), end="")
    cells = 16
    clip = "none"
    """
    return "\n".join([*_lines(recipe, ""), ""])


def _lines(section: Any, prefix: str) -> Iterator[str]:
    values = [(field, getattr(section, field.name)) for field in fields(section)]
    for field, value in values:
        if not is_dataclass(value) and not (value is None and field.default is None):
            yield f"{field.name} = {_as_toml(value)}"
    for field, value in values:
        if is_dataclass(value):
            yield from ("", f"[{prefix}{field.name}]", *_lines(value, f"{prefix}{field.name}."))


def _as_toml(value: Any) -> str:
    if value is None:
        return f'"{_NONE}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(_as_toml(item) for item in cast('tuple[Any, ...]', value))}]"
    return repr(value)
