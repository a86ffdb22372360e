"""Write a text file, mostly JSON, to a path that the user names.

An existing JSON file is only replaced if it is of the same kind, or if that was requested.
"""

from __future__ import annotations

import json
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.errors import StoreError, UsageError
from winml_dag.file_reading import read_json
from winml_dag.store.files import write_whole


def put_json(path: Path, value: JsonObject, mark: str, *, overwrite: bool) -> Path:
    """Write *value* to *path*; an existing file is of the same kind if it is an object with the key *mark*.

    Raises:
        UsageError: when another file is in the way, and *overwrite* does not allow replacing it.
        StoreError: when the file cannot be written; an existing file is unchanged.
    """
    if path.is_file() and not (overwrite or has_mark(path, mark)):
        raise UsageError(
            f"{path} is in the way, and no file of that kind.", advice="Give --overwrite, or another file."
        )
    return put_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def put_text(path: Path, text: str) -> Path:
    """Write *text* to *path*, replacing any file.

    Raises:
        UsageError: for a folder.
        StoreError: when the file cannot be written; an existing file is unchanged.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", advice="Choose a file.")
    try:
        # A lone surrogate is a byte of a file name that is not valid text; JSON can read it back from the escape.
        data = text.encode(errors="backslashreplace")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)  # a rename would replace the link or the device, such as /dev/stdout
        else:
            write_whole(path, data)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}.", advice="Choose another place."
        ) from error
    return path


def has_mark(path: Path, mark: str) -> bool:
    """Whether the file *path* is a JSON object with the key *mark*."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and mark in found
