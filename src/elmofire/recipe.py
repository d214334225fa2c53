"""Tables read from TOML or JSON become frozen dataclasses, strictly: nothing unknown, nothing of a wrong type."""

import difflib
import reprlib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from elmofire.errors import RecipeError

Table = TypeVar("Table")

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
        if value is None and type(None) in arguments:
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
