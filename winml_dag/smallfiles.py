"""Files that are read whole and may come from anybody: recipes, manifests, records, settings, results of stages.

The path may instead be a pipe without a writer, a device without an end, or JSON that nests deeper than readers
support. Each of these raises an error that readers expect of a file anyway.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

# Far more than any such file has; a larger one is a mistake, or meant to exhaust memory.
MOST_BYTES = 64 * 1024 * 1024
# For files with a line for each stage of a build or each cell of a sweep.
MOST_BYTES_OF_MANY = 512 * 1024 * 1024
# Valid files nest ten levels deep. Python's limit is 1000 calls, and every reader makes several per level.
_MOST_DEPTH = 100

# Opening a pipe must not wait for its writer; ordinary files are not affected.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path | str) -> tuple[int, os.stat_result]:
    """Descriptor and status of the ordinary file *path*. Raises OSError if it is missing or another kind of file."""
    # Also before opening it: just opening some devices has an effect.
    _refuse_special(path, os.stat(path))  # noqa: PTH116 - thousands of small files
    opened = os.open(path, _FLAGS)
    try:
        status = os.fstat(opened)
        _refuse_special(path, status)
    except BaseException:
        os.close(opened)
        raise
    return opened, status


def read_bytes(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of the ordinary file *path*. Raises OSError, also if it is larger than *most_bytes*."""
    # No file object: creating one for each of thousands of records costs as much as reading it.
    opened, status = open_regular(path)
    try:
        left = most_bytes + 1
        if status.st_size <= most_bytes:
            # One byte more than expected, so that usually the first call reaches the end. A file that is being written
            # to, or that the system generates on reading, has more than its size.
            data = os.read(opened, min(left, status.st_size + 1))
            if len(data) == status.st_size > 0:
                return data
            parts = [data]
            while (left := left - len(parts[-1])) > 0:
                parts.append(os.read(opened, min(left, 1 << 20)))
                if not parts[-1]:
                    return b"".join(parts)
    finally:
        os.close(opened)
    raise OSError(errno.EFBIG, f"it is too large: more than {most_bytes // 1024**2} MiB", str(path))


def read_text(
    path: Path | str, most_bytes: int = MOST_BYTES, *, encoding: str = "utf-8", errors: str = "strict"
) -> str:
    """The same as text with ``\\n`` line endings. Raises OSError, and UnicodeDecodeError, a ValueError."""
    text = read_bytes(path, most_bytes).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, most_bytes: int = MOST_BYTES, *, encoding: str = "utf-8") -> Any:
    """The JSON value in the file *path*. Raises OSError, and ValueError for invalid or too deeply nested JSON."""
    return parse_json(read_bytes(path, most_bytes).decode(encoding))


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """The JSON value of *text*.

    Raises ValueError for invalid or too deeply nested JSON, and for NaN and infinities unless allowed.
    """
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _refuse_constant)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, dict | list)]
        if not level:
            return value
    raise ValueError("it nests too deep")


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_special(path: Path | str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
