"""What one ``stat`` tells of a file: equal signatures, the same file as it was."""

from __future__ import annotations

import os
import stat

from winml_dag.readlog import Signature
from winml_dag.store.changetime import change_time_ns

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
