"""Reports what planning reads, before it is read, so that a cached plan is stored with the state that was seen.

A later check may see another file at the same path, whatever its times are: a link or a folder on the way may have
changed. Code in every layer reads files for a plan, and does not depend on the plan cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

# Size, modification time, inode, change time.
Signature: TypeAlias = tuple[int, int, int, int]
# A path, and its signature when its content was read; None: it has not been read yet.
Log: TypeAlias = Callable[[str, Signature | None], None]

_log: ContextVar[Log | None] = ContextVar("readlog", default=None)


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


def was_read(path: str | os.PathLike[str], signature: Signature) -> None:
    """Report that the file *path* was read, and had *signature* before and after."""
    if (log := _log.get()) is not None:
        log(os.fspath(path), signature)
