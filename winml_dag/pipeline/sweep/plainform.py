"""Frozen dataclasses as plain JSON values, and back with every field checked: what is read may be by anybody.

The types in the annotations are the form, so a field that is added to a dataclass needs no word here. A field that has
a default may be missing, and one that is unknown is passed over: a newer version may have written it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Read: TypeAlias = Callable[[object, str], Any]

_AS_IT_IS = frozenset({str, int, float, bool, type(None)})


class Misshapen(ValueError):
    """A value that is not of the form; the text says where and what was expected."""


def plain(value: object) -> Any:
    """*value* as :func:`read` takes it back."""
    if type(value) in _AS_IT_IS:
        return value  # most of what there is
    if is_dataclass(value):
        kind: Any = type(value)
        return {name: plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, StrEnum) else value


def read(kind: type[T], value: object, where: str = "") -> T:
    """The *kind* of dataclass that *value* has the fields of; *where* is put before the names of what is wrong.

    Raises:
        Misshapen: for a field that is missing or of another type.
    """
    wanted: Any = kind
    found: T = _reader(wanted)(value, where)
    return found


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _reader(kind: Any) -> _Read:
    """What checks and makes a value of the type *kind*."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [each for each in arguments if each is not types.NoneType]
        # A union of several types is that of all JSON values, and whatever was read as JSON is one.
        return _or_none(_reader(others[0])) if len(others) == 1 else _any
    if origin is tuple:
        return _several(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_whole if arguments[0] is int else _any, _reader(arguments[1]))
    if is_dataclass(kind):
        return _object(kind)
    if issubclass(kind, StrEnum):
        return _word(kind)
    return _simple(kind)


def _any(value: object, _where: str) -> Any:
    return value


def _whole(key: object, where: str) -> int:
    text = str(key)
    if not (text.isascii() and text.isdecimal()):
        raise Misshapen(f"{where} is under no whole number")
    return int(text)


def _or_none(inner: _Read) -> _Read:
    return lambda value, where: None if value is None else inner(value, where)


def _several(inner: _Read) -> _Read:
    def take(value: object, where: str) -> Any:
        if not isinstance(value, list):
            raise Misshapen(f"{where} is no list")
        return tuple(inner(each, f"{where}[{place}]") for place, each in enumerate(value))

    return take


def _mapping(outer: _Read, inner: _Read) -> _Read:
    def take(value: object, where: str) -> Any:
        if not isinstance(value, dict):
            raise Misshapen(f"{where} is no object")
        return {outer(key, f"{where}.{key}"): inner(each, f"{where}.{key}") for key, each in value.items()}

    return take


def _object(kind: Any) -> _Read:
    # The type of all JSON values names itself.
    hints = get_type_hints(kind, localns={"JsonValue": Any})
    readers = [(field.name, _reader(hints[field.name]), _has_default(field)) for field in fields(kind)]

    def take(value: object, where: str) -> Any:
        if not isinstance(value, dict):
            raise Misshapen(f"{where or 'it'} is no object")
        found = {}
        for name, inner, may_be_missing in readers:
            if name in value:
                found[name] = inner(value[name], f"{where}.{name}" if where else name)
            elif not may_be_missing:
                raise Misshapen(f"{f'{where}.' if where else ''}{name} is missing")
        return kind(**found)

    return take


def _has_default(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _word(kind: type[StrEnum]) -> _Read:
    words = {str(each): each for each in kind}

    def take(value: object, where: str) -> StrEnum:
        if not isinstance(value, str) or value not in words:
            raise Misshapen(f"{where} is none of {', '.join(words)}")
        return words[value]

    return take


_SIMPLE = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def _simple(kind: type) -> _Read:
    accepted = (int, float) if kind is float else kind
    what = _SIMPLE[kind]

    def take(value: object, where: str) -> Any:
        # A truth value is a whole number to Python.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise Misshapen(f"{where} is {'not' if kind is bool else 'no'} {what}")
        return value

    return take
