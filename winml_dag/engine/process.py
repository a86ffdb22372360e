"""A child process and all its descendants: its environment, start it in its own group, wait, kill the whole group.

POSIX has process groups; on Windows ``taskkill /T`` walks the tree from the child down.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from winml_dag.engine.forkserver import ForkedWorker

# Starts a worker: see ``ForkServer.fork``.
Fork: TypeAlias = "Callable[[Path, Mapping[str, str], int], ForkedWorker]"

if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _CREATION_FLAGS = 0
# The longest that poll accepts, 24 days: a longer limit counts as this one.
_MOST_POLLED_MS = 2**31 - 1


@functools.cache
def _nothing() -> int:
    """The descriptor of an empty file that stays open: Popen would open and close one for each command."""
    return os.open(os.devnull, os.O_RDONLY)


class ProcessGroup:
    """One child and its descendants.

    With *holds_stdin* the child's standard input stays open for the lifetime of this process, so that the child notices
    when this process ends; otherwise it is empty. If *fork* is given, it starts the child, and *arguments* are not
    used.

    Raises:
        OSError: when the child cannot be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        holds_stdin: bool = True,
        program: str | None = None,
        fork: Fork | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._reaped = False
        self.timed_out = False
        # Not "wb": another job may have left a log here, and truncating an existing file costs less than creating one.
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        self._child: subprocess.Popen[bytes] | ForkedWorker
        try:
            if fork is not None:
                self._child = fork(folder, environment, output)
            else:
                self._child = subprocess.Popen(
                    arguments,
                    executable=program,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.PIPE if holds_stdin else _nothing(),
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # its own process group; ignored on Windows
                    creationflags=_CREATION_FLAGS,
                )
        finally:
            os.close(output)
        self.pid = self._child.pid

    def wait(self, timeout_seconds: float) -> int:
        """Wait for the child to end, at most *timeout_seconds*; then :meth:`reap`."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a container that forbids the call
            self._wait_with_timer(timeout_seconds)
            return self.reap()
        # Not with a timer, whose thread costs as much as a small command.
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            if not ended.poll(min(timeout_seconds * 1000, _MOST_POLLED_MS)):
                self._time_out()
                self._wait_unreaped()
        finally:
            os.close(descriptor)
        return self.reap()

    def _wait_with_timer(self, timeout_seconds: float) -> None:
        # Beyond TIMEOUT_MAX (292 years, on Windows 49 days) the timer's thread would fail.
        timer = threading.Timer(min(timeout_seconds, threading.TIMEOUT_MAX), self._time_out)
        timer.daemon = True
        timer.start()
        try:
            self._wait_unreaped()
        finally:
            timer.cancel()

    def reap(self) -> int:
        """Kill the rest of the group after the child has ended. Returns the exit code (negative: signal)."""
        with self._lock:
            if self._reaped:
                return self._child.wait()
            # Until the child is reaped, no other process can get its process id, which is also the group's.
            self._kill()
            self._reaped = True
            code = self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()
        return code

    def end(self) -> None:
        """Kill the child and all its descendants. Does nothing if they have ended."""
        with self._lock:
            if not self._reaped:
                self._kill()

    def _time_out(self) -> None:
        with self._lock:
            if not self._reaped:
                self.timed_out = True
                self._kill()

    def _kill(self) -> None:
        if sys.platform == "win32":
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(self._child.pid)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
        else:
            # macOS raises PermissionError for a group that has only zombies left.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _wait_unreaped(self) -> None:
        if hasattr(os, "waitid") and isinstance(self._child, subprocess.Popen):
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


def python_path() -> dict[str, str]:
    """The variable that lets a worker find this package from any folder."""
    package = str(Path(__file__).resolve().parents[2])
    search = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": package if not search else os.pathsep.join([package, search])}


def temporary_environment(folder: str) -> dict[str, str]:
    """The variables that name the temporary folder on every system."""
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)


# Addresses with passwords, tokens and signing keys. No stage needs them.
_OF_REMOTES = "WINML_DAG_REMOTE"

# By default, threads of OpenMP that wait for work keep a processor busy, which other stages could use: beside one, a
# run of MiniLM in PyTorch took 1.2 s of processor time, and 0.6 with this.
_PASSIVE: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE"}


def worker_environment(temporary: str | None = None) -> dict[str, str]:
    """The environment of a worker: the user's, without what would make its output depend on the moment.

    Variables of remotes are removed, since a model may bring its own code. Hash order, time zone and locale are fixed,
    temporary files stay in the scratch folder, and hubs are offline: everything that a stage needs is among its inputs.
    """
    fixed: Mapping[str, str] = {
        **python_path(),
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
        **(temporary_environment(temporary) if temporary else {}),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_REMOTES)}
    return {**_PASSIVE, **kept, **fixed}
