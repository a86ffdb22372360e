"""Load a model for the first time in a process, as an application does when it starts.

A second load in one process finds libraries and drivers already loaded, so each measurement uses a fresh process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.engine import elsewhere
from winml_dag.engine.memory import resident
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


@dataclass(frozen=True)
class Model:
    """A model, and where and how to run it; ``compiled``: whether it is compiled for that target."""

    path: str
    execution_provider: str
    device: str
    options: Mapping[str, str]
    threads: int | None
    compiled: bool


@dataclass(frozen=True)
class Load:
    """Times of one load, in seconds: to import onnxruntime, to register the provider, and to create the session.

    Only the last is called the load (``seconds``). ``waited_share``: the fraction of it spent waiting for a processor.
    ``memory_before``, ``memory_after``: resident bytes around it.
    """

    import_seconds: float
    register_seconds: float
    seconds: float
    waited_share: float | None
    memory_before: int | None
    memory_after: int | None


def load(model: Model) -> tuple[onnxruntime.InferenceSession, Load]:
    """Load *model* in this process, which should not have imported onnxruntime yet.

    Raises StageError if it does not load on its target.
    """
    target = Target(find_ep(model.execution_provider), model.device)
    began = time.perf_counter()
    import onnxruntime  # noqa: F401 - its import is what is measured

    from winml_dag.ep.session import create_session, register

    imported = time.perf_counter()
    register(target.ep)
    registered = time.perf_counter()
    before, waited = resident(), waited_ns()
    started = time.perf_counter()
    session = create_session(
        Path(model.path), target, model.options, threads=model.threads, compiled=model.compiled, as_deployed=True
    )
    seconds = time.perf_counter() - started
    share = waited_share(waited, waited_ns(), round(seconds * 1e9))
    times = (imported - began, registered - imported, seconds)
    return session, Load(*times, share, before.now, resident().now)


# A fresh Python next to a worker belongs to its process group, and ends with it. The package must be found in the same
# way in every environment, even if the search path does not include it.
_RUN = """
import runpy, sys
runpy.run_path(sys.argv[1])["take_package_from"](sys.argv[2])
from winml_dag.stages.perf.load import main
main(*sys.argv[3:])
"""


def load_in_fresh_process(model: Model) -> Load:
    """Load *model* in a separate process, which then ends.

    Raises StageError if it does not load there, or its process ends in another way.
    """
    name, finder = Path(model.path).name, Path(elsewhere.__file__)
    answer = Path(f"{name}.load.json").absolute()
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-c", _RUN, str(finder), str(finder.resolve().parents[1])]
    command += [json.dumps(asdict(model)), str(answer)]
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    try:
        content = json.loads(answer.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StageError(f"The process that loads {name} ended with {describe_exit(code)}.", advice=SEE_LOG) from None
    if "error" in content:
        raise StageError(content["error"], advice=content["advice"])
    return Load(**content)


def main(request: str, answer: str) -> None:
    """Entry point of the fresh process; writes the answer to a file, because native libraries print to stdout."""
    try:
        _session, found = load(Model(**json.loads(request)))
        content: object = asdict(found)
    except WinmlDagError as error:
        content = {"error": error.message, "advice": error.advice}
    Path(answer).write_text(json.dumps(content), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip exit handlers: those of native libraries may hang or crash.
    os._exit(0)
