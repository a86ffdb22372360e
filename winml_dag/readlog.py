"""Planning tells here what it reads, before it reads it: whoever remembers the plan needs the state that was seen then.

What is looked at later may be another file under the same path, whatever its times say: a link or a folder on the way
can have changed. Code that reads files for a plan lies on every floor and knows nothing of remembered plans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

# Size, time of modification, inode, time of change.
Signature: TypeAlias = tuple[int, int, int, int]
# A path, and what it was when its content was read; None: it has not been read yet.
Log: TypeAlias = Callable[[str, Signature | None], None]

_log: ContextVar[Log | None] = ContextVar("readlog", default=None)


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
