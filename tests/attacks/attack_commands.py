"""Runs commands in forked processes, which saves the 0.2 s of their imports, and injects actions during a command.

Actions happen at the start, check, publication or output of its stages, or at any system call.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO

from attacked_project import Site

from winml_dag import file_reading
from winml_dag.cli import run
from winml_dag.engine.inplace import InPlace
from winml_dag.engine.inputs import Preparer
from winml_dag.engine.process import ProcessGroup
from winml_dag.pipeline.userstages.folder import UserFolder
from winml_dag.store.store import Store

# A command that takes longer hangs.
_PATIENCE_SECONDS = 120.0
_IN_THE_MIDDLE: Mapping[str, tuple[type, str]] = {
    "prepare": (Preparer, "prepare"),
    "start": (ProcessGroup, "__init__"),
    "check": (Preparer, "check"),
    "publish": (Store, "publish"),
    "place": (InPlace, "put"),
    "materialise": (UserFolder, "publish"),
}
AT_THE_END = ("before materialise", "after materialise")
AT_STAGES = tuple(f"{when} {name}" for name in [*_IN_THE_MIDDLE][:-1] for when in ("before", "after"))
CALL = "call"
_CALLS = ("os.", "open", "sqlite3.", "fcntl.", "subprocess.")

# The actions, by point and by how often it was reached.
Happenings = Mapping[tuple[str, int], Sequence[Callable[[], None]]]


class Command:
    """``winml-dag`` with *arguments* in *folder*, running in a separate process."""

    def __init__(
        self, site: Site, folder: Path, arguments: Sequence[str], happens: Happenings, *, coarse_clock: bool
    ) -> None:
        self.arguments = arguments
        self._log = tempfile.TemporaryFile("w+", buffering=1, encoding="utf-8", errors="replace")  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            _be_command(site, folder, arguments, self._log, happens, coarse_clock=coarse_clock)

    def wait(self) -> tuple[int, str]:
        """Return its exit code, negative for a signal, and its output."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                raise AssertionError(f"{self.arguments} hung.\n{self._said()}")
            time.sleep(0.002)
        return os.waitstatus_to_exitcode(ended[1]), self._said()

    def _said(self) -> str:
        with self._log as log:
            log.seek(0)
            return log.read()


def warm_up(site: Site, commands: Sequence[Sequence[str]]) -> None:
    """Import all modules that *commands* import, so that processes forked from here on do not have to."""
    names = site.root / "names"
    for arguments in commands:
        command = Command(
            site, site.project, arguments, {("end", 1): [lambda: _write_modules(names)]}, coarse_clock=True
        )
        code, said = command.wait()
        assert code == 0, said
        for name in names.read_text().split():
            importlib.import_module(name)


def _write_modules(path: Path) -> None:
    path.write_text("\n".join(name for name in sys.modules if name.startswith("winml_dag.")))


class _Happening:
    """Runs actions when their points are reached, in whichever thread, but not during another action."""

    def __init__(self, happens: Happenings) -> None:
        self._happens = happens
        self._times: Counter[str] = Counter()
        self._is_on = True

    def at(self, point: str) -> None:
        if not self._is_on:
            return
        self._times[point] += 1
        self._is_on = False
        try:
            for happen in self._happens.get((point, self._times[point]), ()):
                happen()
        finally:
            self._is_on = True

    def arm(self) -> None:
        for name, (owner, method) in _IN_THE_MIDDLE.items():
            setattr(owner, method, self._around(name, getattr(owner, method)))
        if any(point == CALL for point, _ in self._happens):
            sys.addaudithook(lambda event, _: self.at(CALL) if event.startswith(_CALLS) else None)

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def around(*arguments: Any, **options: Any) -> Any:
            self.at(f"before {name}")
            try:
                return method(*arguments, **options)
            finally:
                self.at(f"after {name}")

        return around


def _be_command(
    site: Site, folder: Path, arguments: Sequence[str], log: TextIO, happens: Happenings, *, coarse_clock: bool
) -> NoReturn:
    # Whatever happens, the child must not continue with its parent's work.
    code = 99
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as ``winml_dag.__main__`` does
        sys.stdout = sys.stderr = log
        for descriptor in (1, 2):
            os.dup2(sys.stdout.fileno(), descriptor)
        os.environ.clear()
        os.environ.update(site.environment())
        os.chdir(folder)
        sys.path[:0] = [str(folder), *map(str, site.modules())]
        if coarse_clock:
            file_reading.settled_ns = lambda _: file_reading.SETTLED_NS
        happening = _Happening(happens)
        happening.arm()
        code = run(list(arguments))
        happening.at("end")
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os._exit(code)
