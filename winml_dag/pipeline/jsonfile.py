"""A file of text, mostly JSON, that a command puts where its user says.

JSON that is there is only replaced when it is a file of the same kind, or when that was asked for.
"""

from __future__ import annotations

import json
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.errors import StoreError, UsageError
from winml_dag.file_reading import read_json
from winml_dag.store.files import write_whole


def put_json(path: Path, value: JsonObject, mark: str, *, overwrite: bool) -> Path:
    """Write *value* to *path*; a file there is of the same kind when it is an object that has *mark*.

    Raises:
        UsageError: when another file is in the way, and *overwrite* does not allow it.
        StoreError: when the file cannot be written; what was there is as it was.
    """
    if path.is_file() and not (overwrite or has_mark(path, mark)):
        raise UsageError(
            f"{path} is in the way, and no file of that kind.", advice="Give --overwrite, or another file."
        )
    return put_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def put_text(path: Path, text: str) -> Path:
    """Write *text* to *path*, whatever file is there.

    Raises:
        UsageError: for a folder.
        StoreError: when the file cannot be written; what was there is as it was.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", advice="Choose a file.")
    try:
        # A lone surrogate stands for a byte in a name that is no text; as an escape JSON reads it back.
        write_whole(path, text.encode(errors="backslashreplace"))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}.", advice="Choose another place."
        ) from error
    return path


def has_mark(path: Path, mark: str) -> bool:
    """Whether the file *path* is a JSON object that has *mark*."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and mark in found
