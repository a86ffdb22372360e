"""Convert frozen dataclasses to plain JSON values and back, checking every field of untrusted input.

A field with a default may be missing, and unknown fields are ignored: a newer version may have written them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class DecodeError(ValueError):
    """A value of the wrong form; the text contains the location and the expected type."""


def encode(value: object) -> Any:
    """Return *value* as JSON values for :func:`decode`."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


def decode(kind: type[T], value: object) -> T:
    """Return the dataclass *kind* with the fields in *value*.

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
