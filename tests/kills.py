"""Kills a process at any of its steps: before each system call that may change a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def killed_at_change(number: int, work: Callable[[], object]) -> bool:
    """Do *work* in a fork that is killed before its change *number* of a file; return whether there are that many."""
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not continue with its parent's tests.
        try:
            sys.addaudithook(_Changes(number))
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


class _Changes:
    """Counts them by Python's audit events."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            is_change = isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
        else:
            is_change = event.startswith(("os.", "sqlite3.")) and event not in ("os.listdir", "os.scandir")
        self._left -= is_change
        if is_change and self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
