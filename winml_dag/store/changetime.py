"""What one ``stat`` tells of a file, and when it last changed in any way: nobody can set that back, so it betrays an
edit that kept size and time.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from winml_dag.readlog import Signature

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
    """Size, time of modification, inode and time of change (see ``changetime``) of the file; None for what is none.

    No device number: it differs from one mount to the next. The path is only where to look, so it is not resolved,
    which would cost a system call for each of its parts: the file that it leads to has its inode here.

    Raises:
        OSError: when there is nothing, or it cannot be looked at.
    """
    status = os.stat(path)  # noqa: PTH116 - for thousands of small files
    return signature_from(path, status) if stat.S_ISREG(status.st_mode) else None


def signature_from(path: str | os.PathLike[str], status: os.stat_result) -> Signature:
    """The same of a *status* that is known. Raises OSError on Windows, where that does not tell of changes."""
    return status.st_size, status.st_mtime_ns, status.st_ino & INODE_MASK, change_time_ns(path, status)
