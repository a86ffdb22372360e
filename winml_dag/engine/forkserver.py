"""Workers as forks of one process that has imported what most of them need. Linux only.

Importing numpy, onnx and the like takes several times as long as the work of a stage on a small model. The server
imports a fixed list once and does nothing else, so the bytes that a worker outputs do not depend on what ran before.
Elsewhere each worker is a new process: numpy's library on macOS does not survive a fork, and Windows has none.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from winml_dag.engine.process import worker_environment

# The numbers that the engine gets for a worker: its process id, and its exit code (negative: signal) when it has ended.
_NUMBER = struct.Struct("q")
# What is requested with the descriptors of a worker: a fork of the server, or of the fork that has imported more.
_WORKER, _MORE = b"w", b"m"
# Separates, among the arguments of the server, the modules that only the latter imports.
_THEN = "--"


class ForkedWorker:
    """A running worker, with the part of ``Popen`` that a process group needs.

    The worker is reaped after ``stdin`` has been closed: until then no other process can get its process id.
    """

    def __init__(self, pid: int, stdin: socket.socket) -> None:
        self.pid = pid
        self.stdin = stdin
        self._lock = threading.Lock()
        self._code: int | None = None

    def wait(self) -> int:
        """Wait until the worker has ended, without reaping it. Returns the exit code (negative: signal)."""
        with self._lock:
            if self._code is None:
                code = _receive(self.stdin)
                self._code = -signal.SIGKILL if code is None else code
            return self._code


class ForkServer:
    """Starts the server process, at the latest with the first worker. *modules*: what it imports; none may need its
    threads.

    *more*: what a fork of it imports in addition, for the workers that need that.
    """

    def __init__(self, modules: Sequence[str], more: Sequence[str] = ()) -> None:
        self._modules = modules
        self._more = more
        self._lock = threading.Lock()
        self._server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
        self._has_forked = False

    def start(self) -> None:
        """Start the server, unless it runs. Returns at once. Raises as :meth:`fork`."""
        with self._lock:
            self._running()

    def fork(self, folder: Path, environment: Mapping[str, str], log: int, *, more: bool = False) -> ForkedWorker:
        """Start a worker in the current folder *folder*, which writes what it prints to the descriptor *log*.

        Raises:
            OSError: when the system cannot start more processes.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._running(), [_MORE if more else _WORKER], [theirs.fileno(), log])
                self._has_forked = True
            ours.sendall(json.dumps([str(folder), dict(environment)]).encode() + b"\n")
            pid = _receive(ours)
            if pid is None:
                raise OSError(errno.EAGAIN, "The process that starts workers cannot start one")
            return ForkedWorker(pid, ours)
        except BaseException:
            ours.close()
            raise

    def _running(self) -> socket.socket:
        """The socket for requests to the server, started if necessary."""
        if self._server is not None and self._server[1].poll() is None:
            return self._server[0]
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "winml_dag.engine.forkserver", *self._modules, _THEN, *self._more],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=worker_environment(),
                start_new_session=True,
            )
        self._server = ours, process
        return ours

    def kill(self) -> None:
        """End the server at once, also if it is still importing what the next worker needs."""
        with self._lock:
            if self._server is not None:
                self._server[1].kill()

    def close(self) -> None:
        """End the server, after all workers have ended."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            if not self._has_forked:
                server[1].kill()  # it may still be importing
            server[0].close()
            server[1].wait()


def _receive(connection: socket.socket) -> int | None:
    """The next number; None if the process that would send it has ended."""
    with contextlib.suppress(ConnectionError):
        data = connection.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(data) == _NUMBER.size:
            return int(_NUMBER.unpack(data)[0])
    return None


def _serve(requests: socket.socket, more: Sequence[str] = ()) -> None:
    """Fork until the engine closes its end, or is killed. The first request that needs *more* starts their server."""
    further: socket.socket | None = None
    while True:
        asked, descriptors, _, _ = socket.recv_fds(requests, 1, 2)
        with contextlib.suppress(ChildProcessError):
            if not descriptors:
                if further is not None:
                    further.close()
                signal.alarm(1)  # ends this process, and so all others, when a worker of a killed engine hangs
            while os.waitpid(-1, os.WNOHANG if descriptors else 0)[0]:
                pass
        if not descriptors:
            return
        with contextlib.suppress(OSError):  # the engine notices that nobody answers
            if asked == _MORE:
                further = further or _server_with(more)
                socket.send_fds(further, [_WORKER], descriptors)
            elif os.fork() == 0:
                _supervise(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _server_with(modules: Sequence[str]) -> socket.socket:
    """Start a fork of this server that imports *modules* too; return the socket for its requests."""
    # Imported here, and below: the engine, which has the other end, needs none of it.
    from winml_dag.engine.worker import die_with_parent, leave

    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            die_with_parent(signal.SIGKILL)
            ours.close()
            _import(modules)
            _serve(theirs)
        finally:
            leave(0)
    theirs.close()
    return ours


def _import(modules: Sequence[str]) -> None:
    # They stay until the end, so looking for garbage among them is in vain. A worker turns that on again.
    gc.disable()
    for module in modules:
        # If it is not installed, or broken, a worker that needs it reports that.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.freeze()  # collecting would copy the pages that it touches, in each worker


def _supervise(connection: int, log: int) -> NoReturn:
    """Be the parent of one worker: it is reaped when its engine knows that it has ended, or has been killed."""
    from winml_dag.engine.worker import die_with_parent

    try:
        die_with_parent(signal.SIGKILL)
        pid = os.fork()
        if pid == 0:
            _work(connection, log)
        # The worker does the same, since either may be first. From here on, the engine can kill the group.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        os.write(connection, _NUMBER.pack(pid))
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        os.write(connection, _NUMBER.pack(ended.si_status if exited else -ended.si_status))
        while os.read(connection, 1):
            pass
        os.waitpid(pid, 0)
    finally:
        os._exit(0)


def _work(connection: int, log: int) -> NoReturn:
    from winml_dag.engine.worker import leave, work

    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        with open(connection, "rb", closefd=False) as request:
            folder, environment = json.loads(request.readline())
        # The worker watches its standard input for the end of the engine.
        for descriptor, source in enumerate((connection, log, log)):
            os.dup2(source, descriptor)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # what an import may have found was the folder of another worker
        os.chdir(folder)
        code = work(Path(".."))
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


if __name__ == "__main__":
    from winml_dag.engine.worker import leave

    at = sys.argv.index(_THEN)
    _import(sys.argv[1:at])
    _serve(socket.socket(fileno=0), sys.argv[at + 1 :])
    leave(0)
