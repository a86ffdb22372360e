"""A job, a node with its inputs in place, and its execution on this machine, in a new process.

Each run has its own process because a native crash or hang must fail only one stage, because memory must be released,
and because output bytes must not depend on what ran before (a second QNN compile in one process gives different bytes
from the first). A worker's current folder is in the scratch folder and all names are fixed and relative, because
absolute paths end up in binaries too. A user's stage that works in place runs in the user's folder.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from winml_dag.canonical import JsonObject
from winml_dag.engine.exchange import DISK_FULL, LOG_FILE, Progress, Result, Task, read_progress
from winml_dag.engine.process import (
    Fork,
    ProcessGroup,
    describe_exit,
    python_path,
    temporary_environment,
    worker_environment,
)
from winml_dag.engine.stage import Node
from winml_dag.errors import StageError

if TYPE_CHECKING:
    from winml_dag.engine.forkserver import ForkServer
    from winml_dag.engine.reaper import Reaper
    from winml_dag.engine.watch import Watched


# Variables that point a Python to its own packages and library, and would point another Python to the same ones.
_OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Exit code of shells and of the system's loader if a program, or a library it needs, is not found.
_CANNOT_RUN = 127


@dataclass(frozen=True)
class Job:
    """A node to run in *folder*, where its inputs are already under ``inputs/<slot>``.

    Attributes:
        at: the folder in which a stage that works in place runs.
        seen: for such a stage, its inputs by slot as paths relative to that folder, each a file or a folder.
        hidden: a folder that the stage must not read, as far as the system can enforce that.
        is_traced: whether the files that it reads are recorded in ``trace``.
        began: when it was prepared, a ``time.time``.
        watched: the files and folders that it reads in place.
        own: the names of all files that were placed in its own folder; None when it works in the user's folder.
    """

    node: Node
    folder: Path
    timeout_seconds: float
    at: Path | None = None
    seen: Mapping[str, str] = field(default_factory=dict)
    hidden: Path | None = None
    is_traced: bool = False
    began: float = 0.0
    watched: tuple[Watched, ...] = ()
    own: frozenset[str] | None = None

    @cached_property
    def log(self) -> Path:
        return self.folder / LOG_FILE

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    def input_folder(self, slot: str) -> Path:
        return self.folder / "inputs" / slot

    def output_folder(self, slot: str) -> str:
        return f"{self.folder}{os.sep}outputs{os.sep}{slot}"

    def output_path(self, slot: str) -> str:
        """The path to which a stage that works in place must write *slot*: the value of ``{outputs.SLOT}``."""
        return f"{self.output_folder(slot)}{os.sep}{self.node.paths[slot].rstrip('/')}"

    def make_output_folders(self) -> None:
        """Create the folders of all slots; for a stage that works in place, the parents of its declared paths."""
        if self.at is None:
            for slot in self.node.stage.outputs:
                os.makedirs(self.output_folder(slot))  # noqa: PTH103
            return
        for slot, path in self.node.paths.items():
            target = self.output_path(slot)
            folder = target if path.endswith("/") else os.path.dirname(target)  # noqa: PTH120 - runs thousands of times
            if not os.path.isdir(folder):  # noqa: PTH112
                os.makedirs(folder)  # noqa: PTH103


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    ``error`` is empty after success. ``progress`` is the last progress that the work reported. ``is_own_message``: the
    error is a message of this program that needs no lines of the log next to it.
    """

    elapsed_seconds: float = 0.0
    metrics: JsonObject = field(default_factory=dict)
    error: str = ""
    advice: str = ""
    progress: Progress | None = None
    is_own_message: bool = False


class Executor(Protocol):
    """Runs jobs. ``run`` is called from several threads at once."""

    def run(self, job: Job) -> Outcome:
        """Do the work of *job* and wait until it ends. Never raises for a failure of the stage."""

    def stop(self) -> None:
        """Kill everything that runs, and refuse to run anything more."""


# Stages of other packages get new processes: what they import may start threads, which are lost in a fork.
_FORKED = "winml_dag.stages."


class LocalExecutor:
    """Runs processes on this machine: a worker for a Python stage, the program itself for a command.

    *preload*: modules that most of the built-in stages import; on Linux, they are imported once for all workers.
    *by_package*: modules that the stages with this package in their toolchain import too.
    """

    def __init__(self, preload: Sequence[str] = (), by_package: tuple[str, Sequence[str]] = ("", ())) -> None:
        self._groups: set[ProcessGroup] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._reaper: Reaper | None = None
        self._preload = preload
        self._package, self._more = by_package
        self._server: ForkServer | None = None

    def run(self, job: Job) -> Outcome:
        """See ``Executor``. Raises OSError when the system cannot start more processes."""
        job.make_output_folders()
        # Reused by the next job in this folder: creating a file or folder costs more than everything else here.
        temporary = f"{job.folder}{os.sep}temporary"
        if not os.path.isdir(temporary):  # noqa: PTH112
            os.mkdir(temporary)  # noqa: PTH102
        try:
            return (self._run_worker if job.node.command is None else self._run_command)(job, temporary)
        except StageError as error:
            job.log.touch()
            return Outcome(error=error.message, advice=error.advice)

    def start_ahead(self) -> None:
        """Begin to import what workers will need, in the process that they are forks of. Returns at once."""
        with suppress(OSError):  # the first worker reports it
            if (server := self._fork_server()) is not None:
                server.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            groups = list(self._groups)
        for group in groups:
            group.end()
        if self._server is not None:
            self._server.kill()

    def close(self) -> None:
        """End the helping processes, after all runs have ended."""
        if self._server is not None:
            self._server.close()
        with self._lock:
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.close()

    def _run_worker(self, job: Job, temporary: str) -> Outcome:
        _task(job).write(job.folder)
        arguments = [sys.executable, "-P", "-m", "winml_dag.engine.worker"]
        if job.at is None:
            # Files that a library writes to the current folder are discarded.
            work = job.folder / "work"
            work.mkdir()
            environment = worker_environment(temporary)
            if job.node.interpreter is not None:
                return self._run_elsewhere(job, job.node.interpreter, work, environment)
            return self._run(job, [*arguments, ".."], work, environment, fork=self._fork_for(job.node))
        own = {**python_path(), **_declared(job.node), **temporary_environment(temporary)}
        return self._run(job, [*arguments, str(job.folder)], job.at, {**self._minimum, **own})

    def _fork_for(self, node: Node) -> Fork | None:
        """What starts the worker of *node*; None if that has to be a new process."""
        server = self._fork_server() if node.stage.work.startswith(_FORKED) else None
        return None if server is None else partial(server.fork, more=self._package in node.toolchain)

    def _fork_server(self) -> ForkServer | None:
        if not self._preload or sys.platform != "linux":
            return None
        # Imported here, as below: builds of commands only need none.
        from winml_dag.engine.forkserver import ForkServer

        with self._lock:
            self._server = self._server or ForkServer(self._preload, self._more)
            return self._server

    @cached_property
    def _minimum(self) -> Mapping[str, str]:
        """The environment of the recipe's own stages, without what each declares."""
        from winml_dag.engine.command import minimal_environment

        return minimal_environment()

    def _run_elsewhere(self, job: Job, interpreter: Path, work: Path, environment: Mapping[str, str]) -> Outcome:
        script = Path(__file__).with_name("elsewhere.py")
        ours = script.resolve().parents[1]
        kept = {name: value for name, value in environment.items() if name not in _OF_OUR_PYTHON}
        # Set as variables, not options: a Python that is too old would exit on unknown options before it could report
        # its version.
        alone = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
        try:
            return self._run(job, [str(interpreter), str(script), str(ours), ".."], work, {**kept, **alone})
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
                raise  # the system's fault, not the environment's
            raise StageError(
                f"The interpreter of {job.node.id}, {interpreter}, cannot be started: {error.strerror}.",
                advice="Create its environment again, or name another one.",
            ) from error

    def _run_command(self, job: Job, temporary: str) -> Outcome:
        from winml_dag.engine.command import config_texts, fill, find_program

        node = job.node
        assert node.command is not None
        assert job.at is not None
        names = {
            "inputs": job.seen,
            "outputs": {slot: job.output_path(slot) for slot in node.paths},
            "config": config_texts(node.config),
        }
        arguments = [fill(argument, names) for argument in node.command.arguments]
        environment = {**self._minimum, **temporary_environment(temporary), **node.command.environment}
        # Use the program that is in the key, even if another one comes before it on PATH now.
        known = node.tools.get("program")
        program = str(known) if known else find_program(arguments[0], job.at, environment)
        self._begin_reaping(job.folder.parent)
        try:
            return self._run(job, arguments, job.at, environment, program)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise  # the system's fault, not the command's
            raise StageError(
                f"{program} cannot be run: {error.strerror}.",
                advice="Name the program that reads it first: [python, script.py]."
                if error.errno in (errno.ENOEXEC, errno.EACCES, errno.ENOENT)
                else "",
            ) from error

    def _run(
        self,
        job: Job,
        arguments: list[str],
        folder: Path,
        environment: Mapping[str, str],
        program: str | None = None,
        fork: Fork | None = None,
    ) -> Outcome:
        if job.hidden is not None:
            from winml_dag.engine.sandbox import confined

            arguments, program = confined(arguments, program, job.hidden, job.folder), None
        elif job.is_traced:
            from winml_dag.engine.sandbox import traced

            arguments, program = traced(arguments, program, job.trace), None
        began = time.monotonic()
        if self._stopped.is_set():
            job.log.touch()
            return Outcome(error="stopped")
        # Not under the lock: what forks it may first have to import what it needs.
        group = ProcessGroup(
            arguments,
            folder=folder,
            environment=environment,
            log=job.log,
            holds_stdin=job.node.command is None,
            program=program,
            fork=fork,
        )
        with self._lock:
            self._groups.add(group)
        if self._stopped.is_set():  # meanwhile
            group.end()
        reaper = self._reaper if job.node.command is not None else None
        entry = reaper.add(group.pid) if reaper is not None else -1
        code = group.wait(job.timeout_seconds)
        with self._lock:
            self._groups.discard(group)
        if reaper is not None:
            reaper.remove(entry)
        return _outcome(job, code, time.monotonic() - began, timed_out=group.timed_out)

    def _begin_reaping(self, scratch: Path) -> None:
        from winml_dag.engine.reaper import Reaper

        with self._lock:
            self._reaper = self._reaper or Reaper(str(scratch))


def _outcome(job: Job, code: int, elapsed: float, *, timed_out: bool) -> Outcome:
    progress = None if job.node.command is not None else read_progress(job.folder)
    if timed_out:
        error = f"It took longer than its limit of {job.timeout_seconds:g} s and was ended."
        return Outcome(elapsed, {}, error, _more_time(job.node), progress)
    if job.node.command is not None:
        error = f"{job.node.id} ended with {describe_exit(code)}." if code else ""
        return Outcome(elapsed, {}, error, _of_command(job, code) if code else "")
    return replace(_worker_outcome(job, code, Result.read(job.folder), elapsed), progress=progress)


def _task(job: Job) -> Task:
    stage = job.node.stage
    return Task(
        stage=stage.name,
        work=stage.work,
        config_class=stage.config,
        config=job.node.config,
        # The current folder is the sibling folder work/: files that a library writes there are discarded.
        inputs={slot: f"../inputs/{slot}" for slot in job.node.inputs} if job.at is None else dict(job.seen),
        outputs={slot: f"../outputs/{slot}" if job.at is None else job.output_path(slot) for slot in stage.outputs},
        machine_facts=dict(job.node.machine_facts),
    )


def _worker_outcome(job: Job, code: int, result: Result | None, elapsed: float) -> Outcome:
    if result is None and code == DISK_FULL:
        error = "The disk of the cache folder is full."
        return Outcome(elapsed, {}, error, "Free some space, or use --cache-dir.")
    if result is None:
        error = f"Its process ended with {describe_exit(code)}."
        return Outcome(elapsed, {}, error, _last_words(job.log))
    # A user's function works in place; the end of its log is the user's own output.
    return Outcome(elapsed, result.metrics, result.error, result.advice, is_own_message=job.at is None)


def _of_command(job: Job, code: int) -> str:
    """Advice for a command that ended with *code*."""
    needed = [name for name in _LIBRARY_PATHS if name in os.environ and name not in _declared(job.node)]
    if code == _CANNOT_RUN and needed:
        return f"{needed[0]} of your environment does not reach a command. If it needs that, declare it under env."
    return _last_words(job.log)


def _last_words(log: Path) -> str:
    try:
        return "The log has its last words." if log.stat().st_size else ""
    except OSError:  # a command may remove its log
        return ""


def _declared(node: Node) -> dict[str, str]:
    """The environment that a user's function declares."""
    declared = node.config.get("env")
    return {name: str(value) for name, value in declared.items()} if isinstance(declared, Mapping) else {}


def _more_time(node: Node) -> str:
    where = "--stage-timeout" if node.folder is None else "timeout in the recipe, or with --stage-timeout"
    return f"Give it more time with {where}."
