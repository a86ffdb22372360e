"""Reading files that may be anybody's, and what tells later whether they are still as they were read.

In the place of a file there can be a pipe that nobody writes to, a device that never ends, or JSON that nests deeper
than any reader of it goes. Each is an error here that its reader expects of a file anyway.

A file's signature is what one stat tells of it, the time of its last change included: nobody can set that back, so it
betrays an edit that kept size and time. Planning announces what it reads before it reads it, since whoever remembers
the plan needs the state that was seen then. What is looked at later may be another file under the same path.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

# Size, time of modification, inode, time of change.
Signature: TypeAlias = tuple[int, int, int, int]
# A path, and what it was when its content was read; None: it has not been read yet.
Log: TypeAlias = Callable[[str, Signature | None], None]

_log: ContextVar[Log | None] = ContextVar("reads_logged", default=None)


@contextmanager
def reads_logged(log: Log) -> Iterator[None]:
    """Tell *log* of all that is read in the block."""
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def before_reading(path: str | os.PathLike[str]) -> None:
    """The content of the file *path*, the names in the folder, or whether it is there at all, is about to be read."""
    if (log := _log.get()) is not None:
        log(os.fspath(path), None)


def was_read(path: str | os.PathLike[str], signature: Signature) -> None:
    """The content of the file *path* was read, and *signature* was true of it before and after."""
    if (log := _log.get()) is not None:
        log(os.fspath(path), signature)


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
    _refuse_special(path, os.stat(path))
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


# What is read less than this after it changed is not remembered: a write just after could get the very same time. 2 s
# is the coarsest step of a file system in use (FAT); others count in milliseconds.
SETTLED_NS = 2 * 10**9

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    # On Windows st_ctime is when the file was made; NTFS keeps the time of the last change of any kind elsewhere.
    class _BasicInfo(ctypes.Structure):
        """FILE_BASIC_INFO: times in steps of 100 ns since 1601."""

        _fields_ = (
            ("creation_time", ctypes.c_int64),
            ("last_access_time", ctypes.c_int64),
            ("last_write_time", ctypes.c_int64),
            ("change_time", ctypes.c_int64),
            ("attributes", wintypes.DWORD),
        )

    _FILE_BASIC_INFO = 0
    _READ_ATTRIBUTES = 0x80
    _SHARE_ALL = 0x7
    _OPEN_EXISTING = 3
    _BACKUP_SEMANTICS = 0x02000000
    _INVALID = ctypes.c_void_p(-1).value
    _STEPS_1601_TO_1970 = 116_444_736_000_000_000

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateFileW.argtypes = (
        wintypes.LPCWSTR,
        wintypes.DWORD,
        wintypes.DWORD,
        wintypes.LPVOID,
        wintypes.DWORD,
        wintypes.DWORD,
        wintypes.HANDLE,
    )
    _kernel.CreateFileW.restype = wintypes.HANDLE
    _kernel.GetFileInformationByHandleEx.argtypes = (
        wintypes.HANDLE,
        ctypes.c_int,
        wintypes.LPVOID,
        wintypes.DWORD,
    )
    _kernel.GetFileInformationByHandleEx.restype = wintypes.BOOL
    _kernel.CloseHandle.argtypes = (wintypes.HANDLE,)

    def change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:
        """Nanoseconds since 1970 of the file's last change; of its last write where the file system knows no more.

        Raises:
            OSError: when the file cannot be opened.
        """
        handle = _kernel.CreateFileW(
            str(path), _READ_ATTRIBUTES, _SHARE_ALL, None, _OPEN_EXISTING, _BACKUP_SEMANTICS, None
        )
        if handle == _INVALID:
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            info = _BasicInfo()
            if not _kernel.GetFileInformationByHandleEx(
                handle, _FILE_BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)
            ):
                raise ctypes.WinError(ctypes.get_last_error())
        finally:
            _kernel.CloseHandle(handle)
        # FAT keeps none: 0.
        return (info.change_time - _STEPS_1601_TO_1970) * 100 if info.change_time else status.st_mtime_ns

else:

    def change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:  # noqa: ARG001
        """Nanoseconds since 1970 of the file's last change, be it content, mode, name or a time that was set."""
        return status.st_ctime_ns


def has_settled(path: Path, at_ns: int) -> bool:
    """Whether a file or folder, or the folder where it is missing, last changed safely before the moment *at_ns*."""
    try:
        status = path.stat()
        return max(status.st_mtime_ns, change_time_ns(path, status)) <= at_ns - SETTLED_NS
    except FileNotFoundError:
        return path.parent == path or has_settled(path.parent, at_ns)
    except OSError:
        return False


# What 64 bits with a sign can hold: inodes of some file systems use all of them.
INODE_MASK = (1 << 63) - 1


def signature_of(path: str | os.PathLike[str]) -> Signature | None:
    """Size, time of modification, inode and time of change (see ``change_time_ns``) of the file; None for what is none.

    No device number: it differs from one mount to the next. The path is only where to look, so it is not resolved,
    which would cost a system call for each of its parts: the file that it leads to has its inode here.

    Raises:
        OSError: when there is nothing, or it cannot be looked at.
    """
    status = os.stat(path)
    return signature_from(path, status) if stat.S_ISREG(status.st_mode) else None


def signature_from(path: str | os.PathLike[str], status: os.stat_result) -> Signature:
    """The same of a *status* that is known. Raises OSError on Windows, where that does not tell of changes."""
    return status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, change_time_ns(path, status)


# --- What one stat says of each path. Thousands are looked at in each build, so this is one flat array that is compared
# as a whole: 9000 paths take 15 ms, where an object for each would take as long again.

# Size, time of modification, inode, time of change: see ``change_time_ns`` for what the last one is for.
PER_PATH = 4
_ABSENT = (0, 0, 0, 0)
_CHANGED = 3


def look(paths: Iterable[str]) -> array[int]:
    """``PER_PATH`` numbers for each path: zeros for one that is not there."""
    found = array("q")
    extend, stat, is_windows = found.extend, os.stat, sys.platform == "win32"
    for path in paths:
        try:
            status = stat(path)
            if is_windows:
                extend(signature_from(path, status))
            else:  # the same, without a call for each
                extend((status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, status.st_ctime_ns))
        except (OSError, ValueError):
            extend(_ABSENT)
    return found


def differing(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The places of the paths for which two looks at the same paths differ."""
    if one == other:
        return []
    return [
        start // PER_PATH
        for start in range(0, len(one), PER_PATH)
        if one[start : start + PER_PATH] != other[start : start + PER_PATH]
    ]


def changed_ns(seen: Sequence[int], place: int) -> int:
    """When the path at *place* last changed; 0 for one that is not there."""
    return seen[place * PER_PATH + _CHANGED]


def racy(seen: Sequence[int], looked_ns: int) -> list[int]:
    """The places of the paths that had changed shortly before *looked_ns*: a write that followed could have got the
    very same time.
    """
    settled_ns = looked_ns - SETTLED_NS
    return [place for place, changed in enumerate(seen[_CHANGED::PER_PATH]) if changed > settled_ns]


class FirstLooks:
    """What was seen of each path before planning read it: a log for ``reads_logged``.

    A look that is taken later may show another file under the same path, and would vouch for what nobody has read.
    """

    def __init__(self) -> None:
        self._first: dict[str, Signature] = {}
        self._changed: set[str] = set()

    def __call__(self, path: str, signature: Signature | None) -> None:
        # As ``text_of`` in ``plan_cache`` has it. Nearly all are absolute, and to make a Path of each takes a while.
        at = path if path.startswith("/") else str(Path(path).absolute())
        if signature is None:
            size, modified_ns, inode, changed_ns = look([at])
            signature = size, modified_ns, inode, changed_ns
        if self._first.setdefault(at, signature) != signature:
            self._changed.add(at)

    def of(self, paths: Iterable[str]) -> array[int] | None:
        """What was first seen of *paths*, as ``look`` has it; None where that vouches for nothing: nobody told of a
        path, or it changed between two reads.
        """
        found = array("q")
        for path in paths:
            first = self._first.get(path)
            if first is None or path in self._changed:
                return None
            found.extend(first)
        return found
