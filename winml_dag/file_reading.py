"""Read files that may come from anybody, log what planning reads, and detect later changes by stat signatures.

The path of a file may instead be a pipe without a writer, a device without an end, or JSON that nests deeper than
readers support. Each of these raises an error that readers expect of a file anyway.

A file's signature comes from one ``stat`` and has the time of the last change of any kind. No program can set that time
back, so it reveals an edit that preserved size and modification time. Planning logs each file before reading it, so
that a cached plan is stored with the state that was seen: a later check may see another file at the same path.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

# Size, modification time, inode, change time.
Signature: TypeAlias = tuple[int, int, int, int]
# A path, and its signature when its content was read; None: it has not been read yet.
Log: TypeAlias = Callable[[str, Signature | None], None]

_log: ContextVar[Log | None] = ContextVar("reads_logged", default=None)


@contextmanager
def reads_logged(log: Log) -> Iterator[None]:
    """Call *log* for everything that is read in the block."""
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def before_reading(path: str | os.PathLike[str]) -> None:
    """Report that a file's content, a folder's names, or the existence of *path* is about to be read."""
    if (log := _log.get()) is not None:
        log(os.fspath(path), None)


def before_reading_folders(folder: Path) -> list[Path]:
    """Report that *folder* and all folders in it are about to be read; returns them."""
    before_reading(folder)
    folders = [folder, *sorted(entry for entry in folder.rglob("*") if entry.is_dir())]
    for inside in folders[1:]:
        before_reading(inside)
    return folders


def was_read(path: str | os.PathLike[str], signature: Signature) -> None:
    """Report that the file *path* was read, and had *signature* before and after."""
    if (log := _log.get()) is not None:
        log(os.fspath(path), signature)


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
    if nests_deeper(value, _MOST_DEPTH):
        raise ValueError("it nests too deep")
    return value


def nests_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects in the JSON *value* are nested deeper than *most*, checked level by level."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        # By type, not by isinstance: a manifest of 4000 stages has 400,000 values.
        level = [
            inner
            for each in level
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _refuse_special(path: Path | str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not valid in JSON")


# Content that is read within this time after a change is not cached: a later write could get the same time. 2 s is the
# coarsest time step of a file system in use (FAT), and allows for the clock of a server.
SETTLED_NS = 2 * 10**9
# A hundredth of it, 20 ms, suffices where files get times of this machine's clock in ticks, of 1 to 10 ms. Nothing is
# needed where each change after a stat has a time of its own, as on Linux from 6.13, NTFS and APFS.
_TICKS, _EXACT = 100, 0
_SHORTEST_TICK_NS, _LONGEST_TICK_NS = 10**6, 10**7
_PROBES = 16
_clocks: dict[int, int] = {}

if sys.platform == "win32":
    import ctypes
    from ctypes.wintypes import BOOL, DWORD, HANDLE, LPCWSTR, LPVOID

    # On Windows st_ctime is the creation time; NTFS keeps the time of the last change of any kind elsewhere.
    class _BasicInfo(ctypes.Structure):
        """FILE_BASIC_INFO: times in steps of 100 ns since 1601."""

        _fields_ = (
            ("creation_time", ctypes.c_int64),
            ("last_access_time", ctypes.c_int64),
            ("last_write_time", ctypes.c_int64),
            ("change_time", ctypes.c_int64),
            ("attributes", DWORD),
        )

    _FILE_BASIC_INFO = 0
    _READ_ATTRIBUTES = 0x80
    _SHARE_ALL = 0x7
    _OPEN_EXISTING = 3
    _BACKUP_SEMANTICS = 0x02000000
    _INVALID = ctypes.c_void_p(-1).value
    _STEPS_1601_TO_1970 = 116_444_736_000_000_000

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateFileW.argtypes = (LPCWSTR, DWORD, DWORD, LPVOID, DWORD, DWORD, HANDLE)
    _kernel.CreateFileW.restype = HANDLE
    _kernel.GetFileInformationByHandleEx.argtypes = (HANDLE, ctypes.c_int, LPVOID, DWORD)
    _kernel.GetFileInformationByHandleEx.restype = BOOL
    _kernel.CloseHandle.argtypes = (HANDLE,)

    def change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:
        """Nanoseconds since 1970 of the file's last change, or of its last write if the file system has no change time.

        Raises OSError when the file cannot be opened.
        """
        access = (_READ_ATTRIBUTES, _SHARE_ALL, None, _OPEN_EXISTING, _BACKUP_SEMANTICS, None)
        handle = _kernel.CreateFileW(str(path), *access)
        if handle == _INVALID:
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            info = _BasicInfo()
            size = ctypes.sizeof(info)
            if not _kernel.GetFileInformationByHandleEx(handle, _FILE_BASIC_INFO, ctypes.byref(info), size):
                raise ctypes.WinError(ctypes.get_last_error())
        finally:
            _kernel.CloseHandle(handle)
        # FAT has none: 0.
        return (info.change_time - _STEPS_1601_TO_1970) * 100 if info.change_time else status.st_mtime_ns

else:

    def change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:  # noqa: ARG001
        """Nanoseconds since 1970 of the file's last change of content, mode, name or set time."""
        return status.st_ctime_ns


def probe_clock(folder: str | os.PathLike[str]) -> None:
    """Find out how precise the times are that the file system of *folder* gives to files.

    A file that no other process knows is written and examined several times. If that fails, times count as coarse.
    """
    name = os.path.join(folder, f".clock-{os.getpid()}-{time.monotonic_ns()}")
    try:
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_TEMPORARY", 0), 0o600)
        try:
            if sys.platform != "win32":
                os.unlink(name)
            began_ns, changes = time.time_ns(), []
            for _ in range(_PROBES):
                os.write(opened, b"0")
                changes.append(change_time_ns(name, os.fstat(opened)))
            ended_ns = time.time_ns()
            device = os.fstat(opened).st_dev
        finally:
            os.close(opened)
    except OSError:
        return
    # A server's clock may be another one, and FAT's times are multiples of 10 ms.
    if began_ns - _LONGEST_TICK_NS <= changes[0] <= changes[-1] <= ended_ns and changes[0] % _SHORTEST_TICK_NS:
        most_ticks = (ended_ns - began_ns) // _SHORTEST_TICK_NS + 2
        _clocks[device] = _EXACT if len({*changes}) == _PROBES > most_ticks else _TICKS


def settled_ns(device: int) -> int:
    """Return how long after a change, in nanoseconds, a file on *device* (``st_dev``) counts as racy."""
    clock = _clocks.get(device)
    if clock is None:
        return SETTLED_NS
    return SETTLED_NS // clock if clock else 0


def has_settled(path: Path, at_ns: int) -> bool:
    """Whether a file or folder last changed safely before *at_ns*. For a missing one, check its parent folder."""
    try:
        status = path.stat()
        return max(status.st_mtime_ns, change_time_ns(path, status)) <= at_ns - settled_ns(status.st_dev)
    except FileNotFoundError:
        return path.parent == path or has_settled(path.parent, at_ns)
    except OSError:
        return False


# The maximum of a signed 64-bit integer: inodes of some file systems use all bits.
INODE_MASK = (1 << 63) - 1


def signature_of(path: str | os.PathLike[str]) -> Signature | None:
    """Size, modification time, inode and change time (see ``change_time_ns``) of a file; None if it is not a file.

    No device number, because it differs from one mount to the next. The path is not resolved, which would take a system
    call for each component: the inode identifies the file it leads to. Raises OSError when it does not exist or cannot
    be accessed.
    """
    status = os.stat(path)
    return signature_from(path, status) if stat.S_ISREG(status.st_mode) else None


def signature_from(path: str | os.PathLike[str], status: os.stat_result) -> Signature:
    """The same for a given *status*. Raises OSError on Windows, where a status has no change time."""
    return status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, change_time_ns(path, status)


# --- Stat signatures of paths. Each build checks thousands, so they are one flat array that is compared as a whole:
# 9000 paths take 15 ms; an object for each would take as long again.

# Size, modification time, inode, change time: see ``change_time_ns`` for the purpose of the last one.
PER_PATH = 4
_ABSENT = (0, 0, 0, 0)
# The index of the change time among them.
CHANGED = 3
# How many numbers are compared at once, since nearly all are equal.
_BLOCK = 256 * PER_PATH


def look(paths: Iterable[str]) -> array[int]:
    """Return ``PER_PATH`` numbers for each path: zeros for one that does not exist."""
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
    """Return the indices of the paths whose signatures differ."""
    return [
        start // PER_PATH
        for block in range(0, len(one), _BLOCK)
        if one[block : block + _BLOCK] != other[block : block + _BLOCK]
        for start in range(block, min(block + _BLOCK, len(one)), PER_PATH)
        if one[start : start + PER_PATH] != other[start : start + PER_PATH]
    ]


def racy(paths: Iterable[str], seen: Sequence[int], looked_ns: int) -> list[int]:
    """Return the indices of *paths* that are racy (see :func:`is_racy`); *seen* begins with their signatures."""
    return [
        index
        for index, (path, changed_ns) in enumerate(zip(paths, seen[CHANGED::PER_PATH], strict=False))
        if is_racy(path, changed_ns, looked_ns)
    ]


def is_racy(path: str, changed_ns: int, looked_ns: int) -> bool:
    """Whether *path* changed shortly before *looked_ns*, so that a later write could have the same time."""
    if changed_ns <= looked_ns - SETTLED_NS:
        return False
    try:
        settled = settled_ns(os.stat(path).st_dev)
    except OSError:
        settled = SETTLED_NS
    # Where each change has a time of its own, signatures alone decide.
    return settled != 0 and changed_ns > looked_ns - settled


class LatestReads(dict[str, Signature]):
    """The signature of each file when its content was last confirmed, by absolute path: a log of reads."""

    def __call__(self, path: str, signature: Signature | None) -> None:
        if signature is not None:
            self[os.path.abspath(path)] = signature


class FirstLooks:
    """The signature of each path before planning read it: a log of reads (see ``reads_logged``).

    A later signature may be that of another file under the same path, and would validate content that was never read.
    """

    def __init__(self) -> None:
        self._first: dict[str, Signature] = {}
        self._changed: set[str] = set()

    def __call__(self, path: str, signature: Signature | None) -> None:
        # As ``text_of`` in ``plan_cache``. Nearly all paths are absolute, and making a Path of each is slow.
        at = path if path.startswith("/") else str(Path(path).absolute())
        if signature is None:
            size, modified_ns, inode, changed_ns = look([at])
            signature = size, modified_ns, inode, changed_ns
        if self._first.setdefault(at, signature) != signature:
            self._changed.add(at)

    def of(self, paths: Iterable[str]) -> array[int] | None:
        """Return the first signatures of *paths*; None if a path was not logged, or changed between two reads."""
        found = array("q")
        for path in paths:
            first = self._first.get(path)
            if first is None or path in self._changed:
                return None
            found.extend(first)
        return found
