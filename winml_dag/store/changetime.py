"""File signatures from one ``stat``, and the time of the last change of any kind.

No program can set that time back, so it reveals an edit that preserved size and modification time.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from winml_dag.readlog import Signature

# Content that is read within this time after a change is not cached: a later write could get the same time. 2 s is the
# coarsest time step of a file system in use (FAT); others use milliseconds.
SETTLED_NS = 2 * 10**9

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    # On Windows st_ctime is the creation time; NTFS keeps the time of the last change of any kind elsewhere.
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
        """Nanoseconds since 1970 of the file's last change, or of its last write if the file system has no change time.

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
        # FAT has none: 0.
        return (info.change_time - _STEPS_1601_TO_1970) * 100 if info.change_time else status.st_mtime_ns

else:

    def change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:  # noqa: ARG001
        """Nanoseconds since 1970 of the file's last change of content, mode, name or set time."""
        return status.st_ctime_ns


def has_settled(path: Path, at_ns: int) -> bool:
    """Whether a file or folder last changed safely before *at_ns*. For a missing one, check its parent folder."""
    try:
        status = path.stat()
        return max(status.st_mtime_ns, change_time_ns(path, status)) <= at_ns - SETTLED_NS
    except FileNotFoundError:
        return path.parent == path or has_settled(path.parent, at_ns)
    except OSError:
        return False


# The maximum of a signed 64-bit integer: inodes of some file systems use all bits.
INODE_MASK = (1 << 63) - 1


def signature_of(path: str | os.PathLike[str]) -> Signature | None:
    """Size, modification time, inode and change time (see ``changetime``) of a file; None if it is not a file.

    No device number, because it differs from one mount to the next. The path is not resolved, which would take a system
    call for each of its parts: the inode identifies the file it leads to.

    Raises:
        OSError: when it does not exist or cannot be accessed.
    """
    status = os.stat(path)  # noqa: PTH116 - for thousands of small files
    return signature_from(path, status) if stat.S_ISREG(status.st_mode) else None


def signature_from(path: str | os.PathLike[str], status: os.stat_result) -> Signature:
    """The same for a given *status*. Raises OSError on Windows, where a status has no change time."""
    return status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, change_time_ns(path, status)
