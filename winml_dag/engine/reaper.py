"""Kill the commands of an engine that was killed: a small process that outlives the engine briefly.

A worker notices that its engine has ended, but a user's command does not. So the engine records the process group of
each command in memory that it shares with this process, which takes no system call. This process waits for the pipe
from the engine to close. If it closes without a message, the engine was killed, and this process kills the recorded
groups. On Linux it also kills every process whose temporary folder is that of the run. That finds processes that left
their group, and a command that was started but not yet recorded.

Run as a script, by an interpreter that imports nothing else. On Windows a job object does all of this.
"""

# Each module that is not imported makes startup faster.
# ruff: noqa: PTH208, SIM105

import os
import struct
import sys

_ENTRY = struct.Struct("=q")
_ENTRIES = 1024
_DONE = b"."

if sys.platform == "win32":
    import ctypes
    import threading
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMITS = 9
    _SET_QUOTA_AND_TERMINATE = 0x0101

    # JOBOBJECT_EXTENDED_LIMIT_INFORMATION: times of a process and of the job, flags, then limits and counters.
    _LIMITS = struct.Struct("@qqINNINII6Q4N")

    class Reaper:
        """A job object: when the engine's handle closes, for any reason, the system ends all processes in the job."""

        def __init__(self, scratch: str) -> None:  # noqa: ARG002 - used on other systems
            self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            self._kernel.CreateJobObjectW.restype = wintypes.HANDLE
            self._kernel.OpenProcess.restype = wintypes.HANDLE
            self._kernel.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
            self._kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
            self._kernel.SetInformationJobObject.argtypes = (
                wintypes.HANDLE,
                ctypes.c_int,
                ctypes.c_void_p,
                wintypes.DWORD,
            )
            self._kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
            self._lock = threading.Lock()
            self._job = self._kernel.CreateJobObjectW(None, None)
            limits = _LIMITS.pack(0, 0, _KILL_ON_JOB_CLOSE, *[0] * 16)
            self._kernel.SetInformationJobObject(self._job, _EXTENDED_LIMITS, limits, len(limits))

        def add(self, pid: int) -> int:
            """End *pid* and its descendants together with this process. Returns the argument for :meth:`remove`."""
            handle = self._kernel.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, pid)
            if handle:
                self._kernel.AssignProcessToJobObject(self._job, handle)
                self._kernel.CloseHandle(handle)
            return 0

        def remove(self, entry: int) -> None:
            """Does nothing: a process that has ended is in no job."""

        def close(self) -> None:
            """Close the job, which is empty by now."""
            with self._lock:
                if self._job:
                    self._kernel.CloseHandle(self._job)
                    self._job = None

else:

    class Reaper:
        """The engine's side. *scratch*: the folder of the run, which contains the temporary folders of all commands.

        Raises OSError when the process cannot be started.
        """

        def __init__(self, scratch: str) -> None:
            import mmap
            import subprocess
            import tempfile
            import threading

            self._lock = threading.Lock()
            self._free = list(range(_ENTRIES))
            with tempfile.TemporaryFile() as table:
                table.truncate(_ENTRIES * _ENTRY.size)
                self._table = mmap.mmap(table.fileno(), _ENTRIES * _ENTRY.size)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(table.fileno()), scratch],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    cwd="/",
                    env={},
                    pass_fds=[table.fileno()],
                    start_new_session=True,
                )

        def add(self, pid: int) -> int:
            """Kill the group of *pid* if this process is killed. Returns the argument for :meth:`remove`."""
            with self._lock:
                if not self._free:  # more at once than any machine has processors; Linux finds these anyway
                    return -1
                entry = self._free.pop()
            _ENTRY.pack_into(self._table, entry * _ENTRY.size, pid)
            return entry

        def remove(self, entry: int) -> None:
            """Remove a group that has ended."""
            if entry >= 0:
                _ENTRY.pack_into(self._table, entry * _ENTRY.size, 0)
                with self._lock:
                    self._free.append(entry)

        def close(self) -> None:
            """Report a normal end, and wait for the process to exit."""
            pipe = self._process.stdin
            if pipe is None or pipe.closed:
                return
            try:
                pipe.write(_DONE)
            except OSError:
                pass  # it was killed; nothing was left to kill
            pipe.close()
            self._process.wait()


def main() -> None:
    """Wait for the engine to end; if it was killed, kill what it started."""
    table, scratch = int(sys.argv[1]), sys.argv[2]
    if os.read(0, 1) == _DONE:
        return
    entries = os.pread(table, _ENTRIES * _ENTRY.size, 0)
    for (pid,) in _ENTRY.iter_unpack(entries):
        if pid > 1:
            _kill(-pid)
    # Repeat for processes that were just being started. Limited, because a process that hangs in the kernel cannot be
    # killed.
    for _ in range(100):
        if not _kill_strays(os.fsencode(scratch)):
            break


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, 9)
    except OSError:
        return False
    return True


def _kill_strays(scratch: bytes) -> bool:
    """Kill all processes whose temporary folder is below *scratch*; returns whether any existed."""
    found = False
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as opened:
                    environment = opened.read()
            except OSError:
                continue
            if b"\0TMPDIR=" + scratch + b"/" in b"\0" + environment:
                found |= _kill(int(name))
    return found


if __name__ == "__main__":
    main()
    os._exit(0)
