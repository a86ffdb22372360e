"""``sweep.json`` in the folder of a sweep: read with every field checked, and written atomically.

Each cell is one line, so that a sweep of hundreds is readable and can be compared line by line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import MOST_BYTES_OF_MANY, parse_json, read_bytes
from winml_dag.pipeline.sweep.codec import DecodeError, decode, encode
from winml_dag.pipeline.sweep.result import FORMAT, SWEEP, SweepResult


def read_sweep(folder: Path) -> SweepResult | None:
    """Return the content of the ``sweep.json`` in *folder*; None when there is none.

    Raises:
        InputError: for a file that is damaged, of another format, or from another program.
    """
    path = folder / SWEEP
    try:
        return sweep_of(read_bytes(path, MOST_BYTES_OF_MANY))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DecodeError as error:
        raise _unusable(path, str(error)) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None


def sweep_of(data: bytes) -> SweepResult:
    """Return the sweep in the text *data*. Raises DecodeError."""
    try:
        value: Any = parse_json(data, allow_nan=False)
    except ValueError as error:
        raise DecodeError(f"it is not JSON ({error})") from None
    found = value.get("format") if isinstance(value, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise DecodeError(f"its format is {found}, and this version knows up to {FORMAT}")
    return decode(SweepResult, value)


def text_of(sweep: SweepResult) -> bytes:
    """Return the content of ``sweep.json``."""
    value = encode(sweep)
    cells = [json.dumps(cell, ensure_ascii=False) for cell in value.pop("cells")]
    lines = [f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in value.items()]
    body = ",\n".join([*lines, f'"cells": [\n{f",{chr(10)}".join(cells)}\n]'])
    # A lone surrogate is a byte of a name that is not valid text; JSON can represent it, UTF-8 cannot.
    return f"{{\n{body}\n}}\n".encode("utf-8", "backslashreplace")


def write_sweep(folder: Path, sweep: SweepResult) -> None:
    """Write *sweep* into *folder* atomically. Raises StoreError when that fails."""
    from winml_dag.store.files import write_whole

    try:
        write_whole(folder / SWEEP, text_of(sweep))
    except OSError as error:
        raise StoreError(
            f"Cannot write {folder / SWEEP}: {error.strerror or error}.",
            advice="Make the folder writable, free some space, or choose another one with -o.",
        ) from None


def _unusable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not what a sweep has left there: {why}.", advice="Move it away, or choose another folder with -o."
    )
