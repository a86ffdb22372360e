"""Describe the first difference between two files that should be the same.

Models are compared as models, with the files that they refer to, and JSON by its values; everything else by bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError

_BUFFER = 1 << 20
_LONGEST = 60


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
    from winml_dag.onnxmodel.inspect import inspect_model

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
    from winml_dag.onnxmodel import difference

    try:
        return difference.first_difference(recorded, found)
    except (InputError, ValueError, TypeError):
        return None  # not a model despite its name, or one with a tensor that onnx cannot read


def _json_difference(recorded: Path, found: Path) -> str | None:
    try:
        before, now = (dict(_leaves(json.loads(path.read_bytes()), "")) for path in (recorded, found))
    except (ValueError, RecursionError):
        return None  # not JSON despite its name
    for path in (*before, *(path for path in now if path not in before)):
        if before.get(path) != now.get(path):
            values = (_shown(side.get(path, "absent")) for side in (before, now))
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


def _shown(text: str) -> str:
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
