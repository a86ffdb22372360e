"""Describe the first difference between two files that should be the same.

Models are compared as models, with the files that they refer to, and JSON by its values; everything else by bytes.
Weights of a model are followed into their files, so the message has a tensor, an index and two values instead of an
offset. Everything else is walked field by field, so any difference in protobuf is found.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import NodeProto, TensorProto, numpy_helper

from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError
from winml_dag.onnxmodel.files import load_model, tensor_chunks
from winml_dag.onnxmodel.graph import byte_size, dtype_name
from winml_dag.onnxmodel.inspect import inspect_model

_BUFFER = 1 << 20
# Longer texts would hide the message around them.
_LONGEST = 60
# Fields that contain the element itself rather than a part of it: naming them would only lengthen the message.
_TRANSPARENT = frozenset({"graph", "g", "t", "f", "i", "s", "floats", "ints", "strings"})
_NAMES = ("name", "key", "tensor_name")
_ABSENT = "absent"


def first_difference(recorded: Path, found: Path, name: str) -> str:
    """Describe where the file *name* in the folder *found* first differs from the one in the folder *recorded*."""
    before, now = recorded / name, found / name
    if not before.is_file() or not now.is_file():
        return "present -> absent" if before.is_file() else "absent -> present"
    difference = None
    if name.endswith(".onnx"):
        difference = _model_difference(before, now)
    elif owner := _owner(found, now):
        # The model maps an offset to a tensor; the contents of a provider's binary are opaque.
        model, is_binary = owner
        if is_binary:
            return f"the binary of {model} {_byte_difference(before, now)}"
        difference = _model_difference(recorded / model, found / model)
    elif name.endswith(".json"):
        difference = _json_difference(before, now)
    return difference or _byte_difference(before, now)


def _owner(folder: Path, file: Path) -> tuple[str, bool] | None:
    """Return the model that refers to *file*, and whether it is the binary of an EPContext node, not external data."""
    for path in sorted(folder.rglob("*.onnx")):
        try:
            summary = inspect_model(path)
        except InputError:
            continue
        if file in {path.parent / name for name in summary.files[1:]}:
            is_data = file in {path.parent / name for name in summary.external_data}
            return path.relative_to(folder).as_posix(), not is_data
    return None


def _model_difference(recorded: Path, found: Path) -> str | None:
    try:
        return model_difference(recorded, found)
    except (InputError, ValueError, TypeError):
        return None  # not a model despite its name, or one with a tensor that onnx cannot read


def _json_difference(recorded: Path, found: Path) -> str | None:
    try:
        before, now = (dict(_leaves(json.loads(path.read_bytes()), "")) for path in (recorded, found))
    except (ValueError, RecursionError):
        return None  # not JSON despite its name
    for path in (*before, *(path for path in now if path not in before)):
        if before.get(path) != now.get(path):
            values = (_shortened(side.get(path, _ABSENT)) for side in (before, now))
            return f"{path or 'the value'}: {' -> '.join(values)}"
    return None


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Yield every value as text with its path, such as ``outputs.logits.cosine`` or ``ranges.x[0]``; 1 is not 1.0."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from _leaves(value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _byte_difference(recorded: Path, found: Path) -> str:
    offset = 0
    with recorded.open("rb") as before, found.open("rb") as now:
        while (old := before.read(_BUFFER)) == (new := now.read(_BUFFER)) and old:
            offset += len(old)
    both = min(len(old), len(new))
    offset += next((index for index in range(both) if old[index] != new[index]), both)
    sizes = [path.stat().st_size for path in (recorded, found)]
    lengths = "" if sizes[0] == sizes[1] else f" ({sizes[0]} -> {sizes[1]} bytes)"
    return f"differs from byte {offset} on{lengths}"


def model_difference(recorded: Path, found: Path) -> str | None:
    """Return where the model *found* first differs from *recorded*: a tensor, attribute or field, with both values.

    Returns None if they are the same model, however its bytes are arranged.

    Raises:
        InputError: either is not a readable model.
    """
    before, now = load_model(recorded, weights=False), load_model(found, weights=False)
    return next(_Walk(recorded, found).message(before, now, ""), None)


@dataclass(frozen=True)
class _Walk:
    """Walks two models in parallel and yields a message for every difference, in the order of the file."""

    recorded: Path
    found: Path

    def message(self, before: Message, now: Message, where: str) -> Iterator[str]:
        if isinstance(before, TensorProto):
            yield from self._tensor(before, now, where)
            return
        for field in before.DESCRIPTOR.fields:
            place = where if field.name in _TRANSPARENT else _join(where, field.name)
            old, new = getattr(before, field.name), getattr(now, field.name)
            if field.is_repeated:
                yield from self._items(old, new, field.name, where, place)
            elif before.HasField(field.name) != now.HasField(field.name):
                yield _sentence(
                    place, *(_shown(m, field) if m.HasField(field.name) else _ABSENT for m in (before, now))
                )
            elif not before.HasField(field.name):
                continue
            elif field.message_type is not None:
                yield from self.message(old, new, place)
            elif isinstance(old, bytes) and max(len(old), len(new)) > _LONGEST and old != new:
                sizes = "" if len(old) == len(new) else f" ({len(old)} -> {len(new)} bytes)"
                yield f"{place} differs from byte {_first_byte(old, new)} on{sizes}"
            elif not _equal(old, new):
                yield _sentence(place, _shown(before, field), _shown(now, field))

    def _items(self, before: Sequence[Any], now: Sequence[Any], name: str, where: str, place: str) -> Iterator[str]:
        for index, (old, new) in enumerate(itertools.zip_longest(before, now)):
            if not isinstance(new if old is None else old, Message):
                if not _equal(old, new):
                    yield _sentence(f"{place}, element {index}", *map(_text, (old, new)))
                    return
                continue
            labels = [_ABSENT if item is None else _label(item, index) for item in (old, new)]
            # Elements with different names are different: comparing their contents is useless.
            if labels[0] != labels[1]:
                yield _sentence(_join(where, f"{name} {index}"), *labels)
                return
            yield from self.message(old, new, _join(where, f"{name} {labels[0]}"))

    def _tensor(self, before: TensorProto, now: TensorProto, where: str) -> Iterator[str]:
        if before.data_type != now.data_type:
            yield _sentence(f"{where}, type", dtype_name(before.data_type), dtype_name(now.data_type))
        elif before.dims != now.dims:
            yield _sentence(f"{where}, shape", str(list(before.dims)), str(list(now.dims)))
        elif before.data_type == TensorProto.STRING:
            yield from self._items(before.string_data, now.string_data, "", where, _described(before, where))
        else:
            yield from self._values(before, now, _described(before, where))
        if before.name != now.name:
            yield _sentence(f"{where}, name", repr(before.name), repr(now.name))

    def _values(self, before: TensorProto, now: TensorProto, where: str) -> Iterator[str]:
        # A file may have fewer bytes than its tensor's shape needs, or more.
        old, new = b"".join(tensor_chunks(before, self.recorded)), b"".join(tensor_chunks(now, self.found))
        if old != new:
            yield _value_difference(before, where, old, new)


def _value_difference(tensor: TensorProto, where: str, old: bytes, new: bytes) -> str:
    """Describe the first value that differs."""
    place = _first_byte(old, new)
    bits = byte_size(tensor.data_type, [8])  # of one element: as many as eight of them have bytes
    size, count = max(bits // 8, 1), 8 // bits if 0 < bits < 8 else 1
    start = place - place % size
    raw = [data[start : start + size] for data in (old, new)]
    if not bits or any(len(piece) < size for piece in raw):
        return f"{where} differs from byte {place} on"
    values = [_decoded(tensor.data_type, piece, count) for piece in raw]
    inner = next((number for number in range(count) if values[0][number] != values[1][number]), None)
    # NaNs read the same whatever their bits are, and so does padding in the last byte of a 4-bit tensor.
    texts = [value[inner] for value in values] if inner is not None else [f"0x{piece.hex()}" for piece in raw]
    flat = min(start * 8 // bits + (inner or 0), prod(tensor.dims) - 1)
    index = [int(each) for each in np.unravel_index(flat, tuple(tensor.dims))]
    return _sentence(f"{where}, element {index}", *texts)


def _decoded(data_type: int, raw: bytes, count: int) -> list[str]:
    """Return *count* values as texts: for a float, the shortest one that distinguishes it from its neighbours."""
    values = numpy_helper.to_array(TensorProto(data_type=data_type, dims=[count], raw_data=raw))
    return [str(value) for value in values]


def _first_byte(old: bytes, new: bytes) -> int:
    """Return the first byte that differs, or the shorter length."""
    shorter = min(len(old), len(new))
    one, other = (np.frombuffer(data, np.uint8, shorter) for data in (old, new))
    return int(np.argmax(one != other)) if not np.array_equal(one, other) else shorter


def _described(tensor: TensorProto, where: str) -> str:
    return f"{where} ({dtype_name(tensor.data_type)} {list(tensor.dims)})"


def _label(item: Message, index: int) -> str:
    """Return ``'conv1' (Conv)``: the name of an element if it has one, else its index."""
    name = next((getattr(item, name) for name in _NAMES if getattr(item, name, "")), "")
    label = repr(name) if name else str(index)
    return f"{label} ({item.op_type})" if isinstance(item, NodeProto) else label


def _shown(message: Message, field: Any) -> str:
    value = getattr(message, field.name)
    if field.message_type is not None:
        return "present"
    if field.name == "elem_type":
        return dtype_name(value)
    if field.enum_type is not None and value in field.enum_type.values_by_number:
        return str(field.enum_type.values_by_number[value].name)
    return _text(value)


def _text(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, float):
        return str(np.float32(value))  # ONNX has only float32 outside of tensors
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = repr(value)
    return _shortened(text)


def _equal(old: object, new: object) -> bool:
    """Compare like ``==``, except that a NaN equals itself, and 0 does not equal -0."""
    return repr(old) == repr(new) if isinstance(old, float) and isinstance(new, float) else old == new


def _join(where: str, name: str) -> str:
    return f"{where}, {name}" if where else name


def _sentence(where: str, recorded: str, found: str) -> str:
    return f"{where}: {recorded} -> {found}"
