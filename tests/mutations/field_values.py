"""Every field of a schema, with values derived from its type, so that new fields are covered automatically.

These are only candidates: the field's own validators decide which are valid. The words are names in the project of
``planned_keys``, so that fields with file names find some, and a few meaningless ones.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

WORDS = (
    *("other.json", "affinity.json", "word", "other", "model", "same", "data.npz", "data.txt", "op_affinity"),
    *(
        "cpu",
        "qnn",
        "openvino",
        "npu",
        "gpu",
        "w8a16",
        "fp16",
        "int4",
        "0",
        "1",
        "input_ids",
        "org/name",
        "roberta",
        "qwen3",
    ),
    *(
        "sequence_length",
        "text-classification",
        "fill-mask",
        "question-answering",
        "BertForMaskedLM",
        "rows",
        "script.py",
        "other.py",
    ),
)
INTEGERS = (0, 1, 2, 4, 8, 17, 64, 2**31 - 1)
FLOATS = (0.5, 0.0, -1.0, 1.0)
_UNIONS = (types.UnionType, typing.Union)


@dataclasses.dataclass(frozen=True)
class Field:
    """``path`` as written in a recipe (``quant.samples``); ``type`` as declared; ``section``: it has fields itself."""

    path: str
    type: Any
    section: bool


def fields_of(kind: type, path: str = "") -> Iterator[Field]:
    """Yield all fields of a pydantic model or dataclass, recursively."""
    for name, declared in _declared(kind):
        inner = list(sections_in(declared))
        yield Field(path + name, declared, bool(inner))
        for section in inner:
            yield from fields_of(section, f"{path}{name}.")


def _declared(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, BaseModel):
        yield from ((info.alias or name, info.annotation) for name, info in kind.model_fields.items())
    else:
        hints = typing.get_type_hints(kind)
        yield from ((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def sections_in(declared: Any) -> Iterator[type]:
    if isinstance(declared, type) and (issubclass(declared, BaseModel) or dataclasses.is_dataclass(declared)):
        yield declared
    for argument in typing.get_args(declared):
        yield from sections_in(argument)


def values(declared: Any) -> list[Any]:
    """Return JSON candidates for a field of this type; at least two different ones for all but empty sections."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared is JsonValue or isinstance(declared, typing.ForwardRef):  # pydantic's, and a recursive type
        return ["word", 1]
    if origin is typing.Annotated:
        return values(arguments[0])
    if origin in _UNIONS:
        return [value for argument in arguments for value in values(argument)]
    if origin is typing.Literal:
        return list(arguments)
    if origin is tuple or origin is Sequence:
        return _lists(arguments)
    if origin is not None and issubclass(origin, Mapping):
        keys, (*others, last) = values(arguments[0]), values(arguments[1])[:2]
        # Of words, one shows that the value matters.
        some = keys[:1] if arguments[0] is str else keys
        return [{}, *({key: last} for key in keys), *({key: value} for key in some for value in others)]
    if declared is bool:
        return [False, True]
    scalars: Mapping[Any, tuple[Any, ...]] = {int: INTEGERS, float: FLOATS, str: WORDS, type(None): (None,)}
    if declared is Path:
        return [Path("onnx/model.onnx"), Path("onnx/renamed.onnx"), Path("none.onnx")]
    if declared in scalars:
        return list(scalars[declared])
    if next(sections_in(declared), None) is declared:
        return [{}, *({name: value} for name, inner in _declared(declared) for value in values(inner)[-2:])]
    raise TypeError(f"no values are known for {declared!r}: say here what they are")


def _lists(arguments: tuple[Any, ...]) -> list[Any]:
    if len(arguments) == 1 or arguments[1] is Ellipsis:
        inner = values(arguments[0])
        return [[], *([value] for value in inner), inner[:2]]
    ordered = [values(argument) for argument in arguments]
    return [[inner[number % len(inner)] for number, inner in enumerate(ordered, start)] for start in (0, 1)]
