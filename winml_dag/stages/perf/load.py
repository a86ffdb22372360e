"""Load a model for the first time in a process, as an application does when it starts.

A second load in one process finds libraries and drivers already loaded, so each measurement uses a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine import elsewhere
from winml_dag.engine.memory import Resident, resident
from winml_dag.engine.process import describe_exit
from winml_dag.ep.registry import Target, find_ep
from winml_dag.ep.session import SEE_LOG
from winml_dag.errors import StageError, WinmlDagError

if TYPE_CHECKING:
    import onnxruntime


# Measures how long the threads of this process waited for a processor: the time that other programs took.
#
# The load average is not suitable: it includes what this program ran a moment ago.

_THREADS = Path("/proc/self/task")


def waited_ns() -> Mapping[str, int]:
    """Return the waiting time by thread, since it started; empty on systems other than Linux."""
    found = {}
    with suppress(OSError):
        for thread in _THREADS.iterdir():
            with suppress(OSError, ValueError, IndexError):  # it may have ended
                found[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[1])
    return found


def waited_share(before: Mapping[str, int], after: Mapping[str, int], passed_ns: int) -> float | None:
    """Return the fraction of *passed_ns* that the longest-waiting thread waited; None if the system does not report it.

    The longest counts because threads that work together end together.
    """
    waited = [ns - before.get(thread, 0) for thread, ns in after.items()]
    return min(1.0, max(waited) / max(passed_ns, 1)) if waited else None


# A fresh Python next to a worker, in the same environment: for stages that need several processes.
#
# It belongs to the process group of the worker, and ends with it.


# The package must be found in the same way in every environment, even if the search path does not include it.
_RUN = """
import runpy, sys
runpy.run_path(sys.argv[1])["take_package_from"](sys.argv[2])
import importlib
importlib.import_module(sys.argv[3]).main(*sys.argv[4:])
"""


def fresh_python(module: str, *arguments: str) -> list[str]:
    """Return the command that calls ``main(*arguments)`` of *module*, which is in this package."""
    finder = Path(elsewhere.__file__)
    return [sys.executable, "-P", "-c", _RUN, str(finder), str(finder.resolve().parents[1]), module, *arguments]


@dataclass(frozen=True)
class Model:
    """A model, and where and how to run it; ``compiled``: whether it is compiled for that target."""

    path: Path
    target: Target
    options: Mapping[str, str]
    threads: int | None
    compiled: bool


@dataclass(frozen=True)
class Load:
    """Times of one load, in seconds: to import onnxruntime, to register the provider, and to create the session.

    Only the last is called the load (``seconds``). ``waited_share``: the fraction of it spent waiting for a processor.
    """

    import_seconds: float
    register_seconds: float
    seconds: float
    waited_share: float | None
    memory_before: Resident
    memory_after: Resident


def load(model: Model) -> tuple[onnxruntime.InferenceSession, Load]:
    """Load *model* in this process, which should not have imported onnxruntime yet.

    Raises:
        StageError: it does not load on its target.
    """
    began = time.perf_counter()
    import onnxruntime  # noqa: F401 - its import is what is measured

    from winml_dag.ep.session import create_session, register

    imported = time.perf_counter()
    register(model.target.ep)
    registered = time.perf_counter()
    before, waited = resident(), waited_ns()
    started = time.perf_counter()
    session = create_session(
        model.path, model.target, model.options, threads=model.threads, compiled=model.compiled, as_deployed=True
    )
    ended = time.perf_counter()
    seconds = ended - started
    share = waited_share(waited, waited_ns(), round(seconds * 1e9))
    return session, Load(imported - began, registered - imported, seconds, share, before, resident())


def load_in_fresh_process(model: Model) -> Load:
    """Load *model* in a separate process, which then ends.

    Raises:
        StageError: it does not load there, or its process ends in another way.
    """
    request = {
        "path": str(model.path),
        "execution_provider": model.target.ep.name,
        "device": model.target.device,
        "options": dict(model.options),
        "threads": model.threads,
        "compiled": model.compiled,
    }
    answer = Path(f"{model.path.name}.load.json").absolute()
    answer.unlink(missing_ok=True)
    command = fresh_python(__name__, json.dumps(request), str(answer))
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    try:
        told = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StageError(
            f"The process that loads {model.path.name} ended with {describe_exit(code)}.", advice=SEE_LOG
        ) from None
    if "error" in told:
        raise StageError(told["error"], advice=told["advice"])
    told["memory_before"], told["memory_after"] = Resident(**told["memory_before"]), Resident(**told["memory_after"])
    return Load(**told)


def main(request: str, answer: str) -> None:
    """Entry point of the fresh process; writes the answer to a file, because native libraries print to stdout."""
    import os

    given = json.loads(request)
    target = Target(find_ep(given["execution_provider"]), given["device"])
    try:
        _session, found = load(
            Model(Path(given["path"]), target, given["options"], given["threads"], given["compiled"])
        )
        told: object = asdict(found)
    except WinmlDagError as error:
        told = {"error": error.message, "advice": error.advice}
    Path(answer).write_text(json.dumps(told), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip exit handlers: those of native libraries may hang or crash.
    os._exit(0)
