"""An engine with a store and workers as a build has them, in this process or, as a program, in one that can be killed.

``python fault_engine.py CACHE STEPS``: STEPS is a JSON list of [id, work, path, number, input names]. Prints the results
as JSON. A source is a step whose work is ``source``, its path that of the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.known import source_artifact
from winml_dag.engine.run import Runner
from winml_dag.engine.schedule import RunOptions, Scheduler
from winml_dag.engine.stage import InputSlot, Node, Source, SourceFile, Stage
from winml_dag.store.local import LocalStore

TEXT = "text"


@dataclass(frozen=True)
class Step:
    """A node that does *work* of ``fault_stages``, or with the work ``source`` the file at *path*."""

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


def run_steps(cache: Path, steps: Sequence[Step], *, jobs: int = 2) -> dict[str, StageResult]:
    """Run the graph of *steps*; results by id."""
    store = LocalStore(cache)
    try:
        sources = [step.source() for step in steps if step.work == "source"]
        graph = Graph.of([step.node() for step in steps if step.work != "source"], sources)
        digests = {source.name: source_artifact(source, store.fingerprints) for source in sources}
        executor = LocalExecutor()
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
            scheduler = Scheduler(graph, digests, store, runner, executor, RunOptions("here", jobs))
            return {result.node.id: result for result in scheduler.run()}
    finally:
        store.close()


def start_engine(cache: Path, steps: Sequence[Step]) -> subprocess.Popen[str]:
    """The same in a process of its own, in a group of its own, as a shell starts it."""
    arguments = json.dumps([asdict(step) for step in steps])
    return subprocess.Popen(
        [sys.executable, __file__, str(cache), arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def told(engine: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the engine's end: status by id."""
    out, errors = engine.communicate()
    assert engine.returncode == 0, errors
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def is_gone(pid: int) -> bool:
    """Whether the process ends within half a minute. One that nobody has reaped yet has ended."""
    for _ in range(1500):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        threading.Event().wait(0.02)
    return False


def main() -> int:
    steps = [Step(**{**step, "inputs": tuple(step["inputs"])}) for step in json.loads(sys.argv[2])]
    try:
        results = run_steps(Path(sys.argv[1]), steps)
    except KeyboardInterrupt:
        return 130
    print(json.dumps({name: [str(result.status), result.error] for name, result in results.items()}))
    return int(any(result.status is Status.FAILED for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
