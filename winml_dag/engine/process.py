"""A child process with everything it starts: started in a group of its own, waited for, ended as a whole.

POSIX has process groups; on Windows ``taskkill /T`` walks the tree from the child down.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _CREATION_FLAGS = 0


class ProcessGroup:
    """One child and its descendants. ``stdin`` stays open as long as this process lives, so that a child can notice our
    end.
    """

    def __init__(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._ended = threading.Event()
        self.timed_out = False
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                arguments,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own; ignored on Windows
                creationflags=_CREATION_FLAGS,
            )

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the child's end, at most so long; then end what is left of its group. Returns the exit code
        (negative: signal).
        """
        # Beyond TIMEOUT_MAX (292 years, on Windows 49 days) the timer's own thread would end with an error.
        timer = threading.Timer(min(timeout_seconds, threading.TIMEOUT_MAX), self._time_out)
        timer.daemon = True
        timer.start()
        try:
            self._wait_unreaped()
            # Until the child is reaped its process id, which is the group's, cannot belong to anybody else.
            self.end()
            self._ended.set()
            return self._child.wait()
        finally:
            timer.cancel()
            if self._child.stdin is not None:
                self._child.stdin.close()

    def end(self) -> None:
        """Kill the child and all its descendants. Does nothing when they have ended."""
        if self._ended.is_set():
            return
        if sys.platform == "win32":
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(self._child.pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        else:
            # PermissionError is what macOS answers for a group that has only zombies left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _time_out(self) -> None:
        self.timed_out = True
        self.end()

    def _wait_unreaped(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._child.wait()


def describe_exit(code: int) -> str:
    """``signal SIGSEGV`` or ``exit code 3``."""
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
