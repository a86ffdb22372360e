"""Run recorded stages again, each from its recorded inputs in its own process, and report what they output.

Stages run in the same way as in a build. Only the store for results differs: it compares them with the record and
stores nothing. Outputs that differ are kept in the scratch folder, for as long as that exists.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.engine.events import Observer, Reason, Silent, StageResult
from winml_dag.engine.exchange import Watch
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.run import Damaged, LocalRuns, Runner
from winml_dag.engine.stage import Node
from winml_dag.store.artifact import Artifact, FileEntry, output_files
from winml_dag.store.digest import digest_file, split_digest
from winml_dag.store.files import in_words, is_executable
from winml_dag.store.locks import never
from winml_dag.store.records import Record
from winml_dag.store.store import Store


@dataclass(frozen=True)
class Recorded:
    """A node with its record and its inputs by slot."""

    node: Node
    record: Record
    inputs: Mapping[str, Artifact]


@dataclass(frozen=True)
class Rerun:
    """The outcome of run *number*, counted from 1. A result's record has the outputs of this run."""

    recorded: Recorded
    number: int
    outcome: StageResult | Damaged


class Witness(Store):
    """A store that stores nothing: it reads from *store*, and compares what is published with *records*.

    Outputs that differ from those of the record are moved to a folder below *folder*; :meth:`kept` returns its path.
    """

    def __init__(self, store: Store, records: Iterable[Record], folder: Path) -> None:
        self.__dict__.update(vars(store))
        self._records = {record.cache_key: record for record in records}
        self._folder = folder
        self._kept: dict[tuple[str, str, str], Path] = {}
        self._lock = threading.Lock()

    def kept(self, key: str, slot: str, artifact: Artifact) -> Path:
        """The path of *artifact*, which a stage output under *key* and which is not the recorded one."""
        return self._kept[key, slot, artifact.digest]

    def record(self, key: str) -> Record | None:  # noqa: ARG002 - no record counts as cached: each stage has to run again
        return None

    def publish(self, record: Record, folders: Mapping[str, Path | str], log: Path | None = None) -> Record:  # noqa: ARG002
        """Return *record* with the outputs in *folders*. Raises StoreError as a store does."""
        before = self._records[record.cache_key]
        function = split_digest(before.files()[0].digest)[0]
        outputs: dict[str, Artifact] = {}
        with in_words(f"Cannot read the outputs of {record.key_inputs.stage}"):
            for slot, folder in folders.items():
                files = output_files(slot, folder)
                outputs[slot] = Artifact.of(
                    FileEntry(name, digest_file(path, function), status.st_size, is_executable(status))
                    for name, path in files.items()
                    for status in [Path(path).stat()]
                )
                if outputs[slot] != before.outputs.get(slot):
                    self._keep((record.cache_key, slot, outputs[slot].digest), Path(folder))
                else:
                    # As when they are stored: a folder that is reused for another job must not contain files of this
                    # one.
                    for path in files.values():
                        Path(path).unlink()
        return replace(record, outputs=outputs)

    def claim(self, key: str, gives_up: Callable[[], bool] = never) -> AbstractContextManager[None]:  # noqa: ARG002
        """Lock nothing: nothing is written under *key*, so several processes, including a build, may run it at once."""
        return nullcontext()

    def _keep(self, what: tuple[str, str, str], folder: Path) -> None:
        with self._lock:
            if what not in self._kept:
                self._folder.mkdir(exist_ok=True)
                self._kept[what] = folder.rename(self._folder / str(len(self._kept)))


@dataclass(frozen=True)
class _Again(Run):
    """Run *recorded* for the time *number*."""

    recorded: Recorded
    number: int


def run_again(
    recorded: Sequence[Recorded], runner: Runner, *, runs: int = 1, jobs: int = 1, observer: Observer | None = None
) -> list[Rerun]:
    """Run every node *runs* times, *jobs* at a time; ordered by node and then by run.

    Raises:
        KeyboardInterrupt: after all running stages have been killed.
    """
    observer = observer or Silent()
    waiting = deque(_again(one, number, runs) for number in range(1, runs + 1) for one in recorded)
    running = 0
    done: list[Rerun] = []
    with LocalRuns(runner, jobs) as local:
        while waiting or running:
            while waiting and running < jobs:
                again, watch = waiting.popleft(), Watch()
                observer.started(again.recorded.node, again.reason, again.estimate_seconds, watch.read)
                local.start(again.recorded.node, again, again.recorded.inputs, watch)
                running += 1
            for ended in local.wait():
                running -= 1
                decision, outcome = ended.decision, ended.outcome
                # This runner's store returns no records, so nothing can be found to reuse.
                assert isinstance(decision, _Again)
                assert not isinstance(outcome, Reuse)
                if isinstance(outcome, StageResult):
                    observer.finished(outcome)
                done.append(Rerun(decision.recorded, decision.number, outcome))
    order = {one.node.id: index for index, one in enumerate(recorded)}
    return sorted(done, key=lambda rerun: (order[rerun.recorded.node.id], rerun.number))


def _again(one: Recorded, number: int, runs: int) -> _Again:
    why = Reason("reproduce", f"run {number} of {runs}")
    return _Again(one.record.cache_key, one.record.key_inputs, why, one.record, one, number)
