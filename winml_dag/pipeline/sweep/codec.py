"""Frozen dataclasses as plain JSON values, and back with every field checked: what is read may be by anybody.

A field that has a default may be missing, and one that is unknown is passed over: a newer version may have written it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class DecodeError(ValueError):
    """A value that is not of the form; the text says where and what was expected."""


def encode(value: object) -> Any:
    """*value* as :func:`decode` takes it back."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def decode(kind: type[T], value: object) -> T:
    """The *kind* of dataclass that *value* has the fields of.

    Raises:
        DecodeError: for a field that is missing or of another type.
    """
    wanted: Any = kind
    try:
        found: T = _adapter(wanted).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        what = first["msg"].removeprefix("Input ").replace("tuple", "list")
        raise DecodeError(f"{where} {'is missing' if first['type'] == 'missing' else what}") from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
