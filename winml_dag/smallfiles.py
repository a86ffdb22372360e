"""Files that are read whole, and may be anybody's: recipes, manifests, records, settings, what a stage has told.

In the place of one there can be a pipe that nobody writes to, a device that never ends, or JSON that nests deeper than
any reader of it goes. Each is an error here that its reader expects of a file anyway.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

# Far more than any such file has; what is larger is another file by mistake, or meant to fill the memory.
MOST_BYTES = 64 * 1024 * 1024
# Of files that have a line for each stage of a build or each cell of a sweep.
MOST_BYTES_OF_MANY = 512 * 1024 * 1024
# What we and others write is ten deep. Python gives up at 1000 calls, and every reader makes some for each level.
_MOST_DEPTH = 100

# So that opening a pipe does not wait for its writer; it changes nothing for an ordinary file.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path | str) -> tuple[int, os.stat_result]:
    """The descriptor of the ordinary file *path*, and what it is. Raises OSError when there is none or it is another
    kind of file.
    """
    # Before it is opened as well: opening alone makes some devices do something.
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
    """All of the ordinary file *path*. Raises OSError, also for one that is larger than *most_bytes*."""
    # Not a file object: making one for each of thousands of records costs as much as reading it.
    opened, status = open_regular(path)
    try:
        left = most_bytes + 1
        if status.st_size <= most_bytes:
            # One byte more than there is, so the end is seen by the first call, as a rule. A file that is being written
            # to, or that the system makes while it is read, has more than it says.
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
    """The same as text with ``\\n`` at the ends of lines. Raises OSError, and UnicodeDecodeError, a ValueError."""
    text = read_bytes(path, most_bytes).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, most_bytes: int = MOST_BYTES, *, encoding: str = "utf-8") -> Any:
    """The value in the file *path*. Raises OSError, and ValueError for what is no JSON or nests too deep."""
    return parse_json(read_bytes(path, most_bytes).decode(encoding))


def parse_json(text: str | bytes, *, allow_nan: bool = True) -> Any:
    """The value of *text*. Raises ValueError for what is no JSON or nests too deep, and for NaN and infinities unless
    they are allowed.
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
