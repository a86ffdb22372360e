"""Where two artifacts that should be the same first differ, file by file, in words.

A model is compared as a model, together with the files that it refers to; JSON by its values; anything else, and what
has equal values in other bytes, by its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError
from winml_dag.store.artifact import Artifact

_BUFFER = 1 << 20
_LONGEST = 60


def changed_files(recorded: Artifact, found: Artifact) -> tuple[str, ...]:
    """The names of all files that are not the same in both, those that only one has included."""
    before, now = ({file.name: file.digest for file in artifact.files} for artifact in (recorded, found))
    return tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))


def first_difference(recorded: Path, found: Path, name: str) -> str:
    """Where the file *name* of an artifact in the folder *found* first differs from that in the folder *recorded*."""
    before, now = recorded / name, found / name
    if not before.is_file() or not now.is_file():
        return "present -> absent" if before.is_file() else "absent -> present"
    told = None
    if name.endswith(".onnx"):
        told = _model_difference(before, now)
    elif owner := _owner(found, now):
        # Which tensor an offset belongs to is told by the model; within a provider's own binary nobody can tell.
        if owner.is_binary:
            return f"the binary of {owner.model} {_byte_difference(before, now)}"
        told = _model_difference(recorded / owner.model, found / owner.model)
    elif name.endswith(".json"):
        told = _json_difference(before, now)
    return told or _byte_difference(before, now)


@dataclass(frozen=True)
class _Owner:
    """The model that refers to a file: as external data, or as the binary of an EPContext node."""

    model: str
    is_binary: bool


def _owner(folder: Path, file: Path) -> _Owner | None:
    from winml_dag.onnxmodel.inspect import inspect_model

    for path in sorted(folder.rglob("*.onnx")):
        try:
            summary = inspect_model(path)
        except InputError:
            continue
        if file in {path.parent / name for name in summary.files[1:]}:
            is_data = file in {path.parent / name for name in summary.external_data}
            return _Owner(path.relative_to(folder).as_posix(), not is_data)
    return None


def _model_difference(recorded: Path, found: Path) -> str | None:
    from winml_dag.onnxmodel import difference

    try:
        return difference.first_difference(recorded, found)
    except (InputError, ValueError, TypeError):
        return None  # no model, whatever its name says, or one with a tensor that onnx cannot read


def _json_difference(recorded: Path, found: Path) -> str | None:
    try:
        before, now = (dict(_leaves(json.loads(path.read_bytes()), "")) for path in (recorded, found))
    except (ValueError, RecursionError):
        return None  # no JSON, whatever its name says
    for path in (*before, *(path for path in now if path not in before)):
        if before.get(path) != now.get(path):
            values = (_shown(side.get(path, "absent")) for side in (before, now))
            return f"{path or 'the value'}: {' -> '.join(values)}"
    return None


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, str]]:
    """Every value by its path, such as ``outputs.logits.cosine`` or ``ranges.x[0]``, as text: 1 and 1.0 are two."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from _leaves(value[name], f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _byte_difference(recorded: Path, found: Path) -> str:
    with recorded.open("rb") as before, found.open("rb") as now:
        offset = _first_byte(before, now)
    sizes = [path.stat().st_size for path in (recorded, found)]
    lengths = "" if sizes[0] == sizes[1] else f" ({sizes[0]} -> {sizes[1]} bytes)"
    return f"differs from byte {offset} on{lengths}"


def _first_byte(before: BinaryIO, now: BinaryIO) -> int:
    """The offset of the first byte that differs, or the length of the shorter file."""
    offset = 0
    while True:
        old, new = before.read(_BUFFER), now.read(_BUFFER)
        if old != new:
            both = min(len(old), len(new))
            return offset + next((place for place in range(both) if old[place] != new[place]), both)
        if not old:
            return offset
        offset += len(old)
