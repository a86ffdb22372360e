"""An engine with a store and workers as in a build, in this process or in a separate one that can be killed.

``python fault_engine.py CACHE STEPS``: STEPS is a JSON list of steps. Prints the results as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from winml_dag.engine import execute
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LocalExecutor
from winml_dag.engine.forkserver import ForkServer, _serve
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import plan_graph
from winml_dag.engine.run import LocalRuns, Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile, Stage
from winml_dag.store.artifact import Artifact
from winml_dag.store.digest import Fingerprints
from winml_dag.store.store import Store

TEXT = "text"
SCOPE = "here"


def source_artifact(source: Source, fingerprints: Fingerprints) -> Artifact:
    """Return the content of the files of *source*."""
    return Artifact.of(fingerprints.entry(file.path, file.name) for file in source.files)


@dataclass(frozen=True)
class Step:
    """A node that does *work* of ``fault_stages``, or for the work ``source`` the file at *path*."""

    id: str
    work: str
    path: str = ""
    number: int = 0
    inputs: tuple[str, ...] = ()
    timeout_seconds: float = 600.0

    def node(self) -> Node:
        slots = {f"in{number}": name for number, name in enumerate(self.inputs)}
        stage = Stage(
            name=self.id,
            version=1,
            work=f"fault_stages:{self.work}",
            config="fault_stages:Config",
            inputs={slot: InputSlot(frozenset({TEXT})) for slot in slots},
            outputs={"out": TEXT},
            timeout_seconds=self.timeout_seconds,
        )
        return Node(self.id, stage, {"fault": {"path": self.path, "number": self.number}}, slots)

    def source(self) -> Source:
        return Source(self.id, TEXT, (SourceFile("source.txt", Path(self.path)),))


class _Fork:
    """A child process, with the part of ``Popen`` that a server of workers needs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._has_ended = False

    def poll(self) -> int | None:
        self._has_ended = self._has_ended or os.waitpid(self._pid, os.WNOHANG)[0] != 0
        return 0 if self._has_ended else None

    def wait(self) -> None:
        if not self._has_ended:
            os.waitpid(self._pid, 0)

    def kill(self) -> None:
        if not self._has_ended:
            os.kill(self._pid, signal.SIGKILL)


def forked_server() -> ForkServer:
    """Return a server of workers that is a fork of this process, which saves the imports of each worker."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        # Whatever happens, the child must not continue with its parent's work.
        try:
            ours.close()
            os.setsid()
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            _serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    execute._FORKED = "fault_stages:"
    server = ForkServer(["fault_stages"])
    server._server = ours, _Fork(pid)  # type: ignore[assignment]
    return server


def run_steps(cache: Path, steps: Sequence[Step], server: ForkServer | None = None) -> dict[str, StageResult]:
    """Plan and run the graph of *steps* as a build does, and return results by id."""
    store = Store(cache)
    try:
        sources = [step.source() for step in steps if step.work == "source"]
        graph = Graph.of([step.node() for step in steps if step.work != "source"], sources)
        digests = {source.name: source_artifact(source, store.fingerprints) for source in sources}
        planned = plan_graph(graph, digests, store, scope=SCOPE)
        if all(result.status is Status.REUSED for result in planned):
            return {result.node.id: result for result in planned}
        executor = LocalExecutor(["fault_stages"] if server else [])
        executor._server = server
        with store.scratch.open() as scratch:
            runner = Runner(
                graph,
                store,
                executor,
                store.fingerprints,
                scratch=scratch,
                failures=cache / "failures",
                made_by="tests",
                rebuild=False,
            )
            scheduler = Scheduler(graph, digests, store, LocalRuns(runner, 2), RunOptions(SCOPE, jobs=2))
            return {result.node.id: result for result in scheduler.run()}
    finally:
        store.close()
        if server is not None:
            server.close()


@contextmanager
def engine(cache: Path, steps: Sequence[Step]) -> Iterator[subprocess.Popen[str]]:
    """Run the same in a separate process with its own process group, as a shell does.

    It is killed if still running at the end.
    """
    with subprocess.Popen(
        [sys.executable, __file__, str(cache), json.dumps([asdict(step) for step in steps])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the engine's end and return statuses by id."""
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def is_gone(pid: int) -> bool:
    """Return whether the process ends soon. A zombie counts as ended."""
    return soon(lambda: not _is_alive(pid))


def has_threads(pid: int) -> bool:
    """Return whether the process soon has more than its main thread, which means that an engine has started work."""
    return soon(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) > 1)


def soon(happened: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Return whether it happens before the timeout."""
    return any(happened() or threading.Event().wait(0.005) for _ in range(int(seconds / 0.005)))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command line does
    steps = [Step(**{**step, "inputs": tuple(step["inputs"])}) for step in json.loads(sys.argv[2])]
    try:
        results = run_steps(Path(sys.argv[1]), steps)
    except KeyboardInterrupt:
        return 130
    print(json.dumps({name: [str(result.status), result.error] for name, result in results.items()}))
    return int(any(result.status is Status.FAILED for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
