"""The process that does the work of one stage: ``python -m winml_dag.engine.worker FOLDER`` in the stage's folder.

It reads ``task.json``, calls the stage's function and writes ``result.json``, both in FOLDER, where no library writes
files by accident. It exchanges nothing else with the engine, because native libraries print to stdout at will. It ends
with its parent: the engine holds the other end of stdin, and when that closes the whole process group is killed, even
from the middle of native code that holds the interpreter's lock.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.engine.exchange import DISK_FULL, OnProgress, ProgressWriter, Result, Task
from winml_dag.errors import StageError, WinmlDagError

if TYPE_CHECKING:
    from winml_dag.engine.stage import Workspace

# The ``work`` of a stage that is a user's function: see :func:`call`.
CALL = "winml_dag.engine.worker:call"

# Modules that an extra of this package installs, for the advice when one is missing.
_EXTRAS = {
    "torch": "hf",
    "transformers": "hf",
    "tokenizers": "hf",
    "sentencepiece": "hf",
    "PIL": "hf",
    "pyarrow": "datasets",
    "matplotlib": "plot",
}

_PR_SET_PDEATHSIG = 1


def load(reference: str) -> Any:
    """The object that ``package.module:name`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def perform(task: Task, progress: OnProgress, *, elsewhere: bool = False) -> Result:
    """Call the stage's function. Any error becomes a :class:`Result`.

    An error that is not the user's fault is also printed to the log. *elsewhere*: the work runs in another environment,
    which may lack a package that it needs.
    """
    from winml_dag.engine.stage import Workspace, read_config

    try:
        config = read_config(load(task.config_class), task.config) if task.config_class else task.config
        workspace = Workspace(
            inputs={slot: Path(folder) for slot, folder in task.inputs.items()},
            outputs={slot: Path(folder) for slot, folder in task.outputs.items()},
            progress=progress,
            machine_facts=task.machine_facts,
        )
        function: Callable[[Any, Workspace], JsonObject] = call if task.work == CALL else _imported(task.work)
        metrics = function(config, workspace)
        canonical_json(metrics)  # raises for non-JSON values here, where the error can be reported
        return Result({**metrics, **_usage()})
    except WinmlDagError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)  # the message has one line of it
        return Result(error.metrics, error.message or f"{task.stage} failed and did not say why.", error.advice)
    except Exception as error:
        if not elsewhere and isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
            lacks = f"This stage needs the module {error.name!r}, which is not installed."
            return Result({}, lacks, f"pip install winml_dag[{_EXTRAS[error.name]}]")
        # Any exception of a library must reach the user as a sentence, and the log as a traceback.
        traceback.print_exc()
        if elsewhere and isinstance(error, ModuleNotFoundError) and error.name:
            lacks = f"The environment {sys.prefix} has no module {error.name!r}, which this stage imports."
            return Result({}, lacks, f"Install the package that has it: {sys.executable} -m pip install ...")
        return _unexpected(task, error)


def _unexpected(task: Task, error: Exception) -> Result:
    """An unexpected error: a fault of the user's own function, or else of this program or a library."""
    from winml_dag.explanation import explanation

    if task.work == CALL:
        return Result({}, f"{task.config['run']} failed: {explanation(error)}.", "The log has its traceback.")
    files = [path.name for folder in task.inputs.values() for path in sorted(Path(folder).iterdir()) if path.is_file()]
    about = f" on {', '.join(files)}" if files else ""
    return Result(
        {},
        f"{task.stage} met an unexpected error{about}: {explanation(error)}.",
        "This is most likely a fault in the stage or in a library that it uses: report it with the log of the stage.",
    )


def call(config: JsonObject, workspace: Workspace) -> JsonObject:
    """Import and call the function in ``config["run"]``. The current folder comes first on the search path.

    User code depends on no class of this package: inputs and outputs are paths by name, the config is plain JSON.

    Raises:
        StageError: when the function does not exist, is in another file than the key says, returns something other than
            metrics, or its folder does not exist.
    """
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise StageError("The folder that it runs in is gone.", advice="Build again when it is back.") from None
    sys.path.insert(0, str(folder))
    reference = str(config["run"])
    module, _, name = reference.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    _check_files({name: folder / path for name, path in workspace.machine_facts.items()})
    if not callable(function):
        raise StageError(f"{module} has no function {name!r}.", advice="Check run: in the recipe.")
    arguments = [workspace.inputs, workspace.outputs, *([config["config"]] if config.get("config") is not None else [])]
    metrics = function(*arguments)
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise StageError(
            f"{reference} returned {type(metrics).__name__}.", advice="Return a dict of metrics, or nothing."
        )
    return metrics


def _check_files(expected: Mapping[str, Path]) -> None:
    """Raise StageError when a module was not imported from its *expected* file.

    Another module may come before it on the search path, or a package may redirect the import at run time.
    """
    for module, path in expected.items():
        imported = getattr(sys.modules.get(module), "__file__", None)
        try:
            is_same = imported is not None and path.samefile(imported)
        except FileNotFoundError:  # removed meanwhile
            is_same = False
        if not is_same:
            raise StageError(
                f"{module} was imported from {imported}, and not from {path}, which the key has.",
                advice="Remove one of the two, or give the module another name.",
            )


def _imported(reference: str) -> Any:
    """The function, imported with garbage collection disabled.

    Modules stay until the end, and scanning them repeatedly took a seventh of the time to export a small model.
    """
    gc.disable()
    try:
        return load(reference)
    finally:
        gc.freeze()
        gc.enable()


def _usage() -> JsonObject:
    """Peak resident memory of this process in bytes, if the system reports it."""
    from winml_dag.engine.memory import resident

    peak = resident().peak
    return {} if peak is None else {"peak_memory_bytes": peak}


def _end_with_engine() -> None:
    """Kill the process group as soon as the engine has ended, for whatever reason.

    The thread that watches stdin kills the whole group, but not while native code holds the interpreter's lock. Linux
    needs no lock, but it ends only this process: if it did so at once, the children would remain. So its signal calls
    C's own ``alarm`` with the number of the signal, which is 1: SIGALRM follows after 1 s.
    """
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None)
        libc.signal(signal.SIGHUP, libc.alarm)
        die_with_parent(signal.SIGHUP)
    threading.Thread(target=_watch_stdin, daemon=True).start()


def die_with_parent(number: int) -> None:
    """Linux: send this process the signal *number* when its parent ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _watch_stdin() -> None:
    while os.read(0, 1024):
        pass
    if sys.platform == "win32":
        os._exit(1)
    os.killpg(0, signal.SIGKILL)


def _flush() -> None:
    """Flush printed output, native code's too: leaving with ``os._exit`` would lose what C buffers."""
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform != "win32":  # on Windows every library may have its own C runtime, and so its own buffer
        import ctypes

        ctypes.CDLL(None).fflush(None)


def work(folder: Path, *, elsewhere: bool = False) -> int:
    """Do the task in *folder*; returns the exit code."""
    _end_with_engine()
    # Before the work, which may change the current folder.
    folder = folder.absolute()
    progress = ProgressWriter(folder)
    try:
        result = perform(Task.read(folder), progress, elsewhere=elsewhere)
        progress.flush()
        _flush()
        result.write(folder)
    except OSError as error:
        # There may be no room to report this in the result or in the log.
        return DISK_FULL if error.errno == errno.ENOSPC else 1
    return 1 if result.error else 0


def work_elsewhere(folder: str) -> None:
    """Do the work and exit; for :mod:`winml_dag.engine.elsewhere`."""
    leave(work(Path(folder), elsewhere=True))


def leave(code: int) -> NoReturn:
    """End this process."""
    # Not sys.exit: native libraries have been seen to hang or crash in their exit handlers, after the work was done.
    os._exit(code)


if __name__ == "__main__":
    leave(work(Path(sys.argv[1])))
