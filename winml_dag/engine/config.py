"""Convert stage configs between dataclass and JSON: keys hash the JSON, stages use the dataclass."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, TypeVar

from winml_dag.canonical import JsonObject, JsonValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def config_json(config: DataclassInstance) -> JsonObject:
    """Every field of *config*, defaults included, as JSON."""
    return {field.name: _json(getattr(config, field.name)) for field in fields(config)}


def _json(value: object) -> JsonValue:
    if is_dataclass(value) and not isinstance(value, type):
        return config_json(value)
    if isinstance(value, Mapping):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_json(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} is not JSON")


def read_config(kind: type[T], value: JsonValue) -> T:
    """The inverse of :func:`config_json` for the dataclass *kind*.

    pydantic is not used: the same version of this program wrote the JSON, and a worker would import pydantic only for
    this.

    Raises:
        TypeError: when a field is missing or unknown.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{kind.__name__} needs an object, got {value!r}")
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := value.keys() - known.keys():
        raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    for name, field in known.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise TypeError(f"{kind.__name__} needs {name}")
    return kind(**{name: _read(hints[name], inner) for name, inner in value.items()})


def _read(hint: object, value: JsonValue) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        return _read(inner[0], value) if len(inner) == 1 else value
    if isinstance(hint, type) and is_dataclass(hint):
        return read_config(hint, value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(arguments[0], inner) for inner in value)
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _read(arguments[1], inner) for key, inner in value.items()}
    return value
