"""One stage from decided to recorded: claim the key, place the inputs, do the work, check, publish.

Whatever happens in between, the store sees nothing until the work is done and its inputs are known to be what they
were; the scratch folder goes in any case.
"""

from __future__ import annotations

import datetime
import itertools
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.engine import reason
from winml_dag.engine.decide import Reuse, Run
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LOG_FILE, Executor, Job, Outcome, log_tail
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import config_hash
from winml_dag.engine.log import shorten_log
from winml_dag.engine.stage import Node, Source
from winml_dag.errors import InputError, Interrupted, WinmlDagError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.clone import clone_file
from winml_dag.store.digest import split_digest
from winml_dag.store.files import in_words
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.record import Record
from winml_dag.store.store import BlobDamaged, RunStore


@dataclass(frozen=True)
class Damaged:
    """An input could not be fetched: its maker has to run again first."""

    file: FileEntry


class Runner:
    """Runs decided nodes of one graph; safe to call from several threads.

    *scratch* is a folder of this run's own, *failures* where the logs of failed stages stay for their reader;
    *timeout_seconds* takes the place of the limit that each stage declares.
    """

    def __init__(
        self,
        graph: Graph,
        store: RunStore,
        executor: Executor,
        fingerprints: Fingerprints,
        *,
        scratch: Path,
        failures: Path,
        made_by: str,
        rebuild: bool,
        timeout_seconds: float | None = None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._executor = executor
        self._fingerprints = fingerprints
        self._scratch = scratch
        self._failures = failures
        self._made_by = made_by
        self._rebuild = rebuild
        self._timeout = timeout_seconds
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._active = 0
        self._changed = threading.Condition()

    def stop(self) -> None:
        """End everything that runs or waits, run nothing more, and return when nothing touches the scratch folder.

        The thread pool cannot be asked: an interrupt that hits it while it starts a thread makes it forget that thread.
        """
        self._stopped.set()
        self._executor.stop()
        with self._changed:
            self._changed.wait_for(lambda: self._active == 0)

    def run(self, node: Node, decision: Run, inputs: Mapping[str, Artifact]) -> StageResult | Reuse | Damaged:
        """Do what was decided with the artifacts by slot. Reuse means: somebody else did it while we waited.

        Raises:
            Interrupted: after :meth:`stop`.
        """
        with self._changed:
            if self._stopped.is_set():
                raise Interrupted("Stopped.")
            self._active += 1
        try:
            return self._run_claimed(node, decision, inputs)
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _run_claimed(self, node: Node, decision: Run, inputs: Mapping[str, Artifact]) -> StageResult | Reuse | Damaged:
        with self._store.claim(decision.key, self._stopped.is_set):
            if not self._rebuild and (record := self._made_meanwhile(decision.key)):
                return Reuse(record, reason.found(record.made_at))
            # A number, not the node's id: paths stay short and free of whatever a recipe may call its stages.
            folder = self._scratch / str(next(self._numbers))
            try:
                # A full disk, or a system that starts no more processes, fails this stage like anything else.
                with in_words(f"Cannot run {node.id}"):
                    folder.mkdir()
                    return self._run_in(folder, node, decision, inputs)
            except BlobDamaged as error:
                return Damaged(error.file)
            except WinmlDagError as error:
                return self._failed(node, decision, Outcome(0.0, folder / LOG_FILE, {}, error.message, error.advice))
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _made_meanwhile(self, key: str) -> Record | None:
        record = self._store.record(key)
        return record if record is not None and not self._store.missing(record.files()) else None

    def _run_in(self, folder: Path, node: Node, decision: Run, inputs: Mapping[str, Artifact]) -> StageResult:
        job = Job(node, folder, self._timeout or node.stage.timeout_seconds)
        for slot, name in node.inputs.items():
            self._place(name, inputs[slot], job.input_folder(slot))
        outcome = self._executor.run(job)
        shorten_log(outcome.log)
        for slot, name in node.inputs.items():
            if source := self._graph.sources.get(name):
                self._check_unchanged(source, inputs[slot])
        if outcome.error:
            return self._failed(node, decision, outcome)
        record = self._store.publish(
            Record(
                cache_key=decision.key,
                config_hash=config_hash(node.config),
                ingredients=decision.ingredients,
                outputs={},
                metrics=outcome.metrics,
                elapsed_seconds=round(outcome.elapsed_seconds, 3),
                made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                made_by=self._made_by,
                input_files={slot: artifact.to_json() for slot, artifact in inputs.items()},
            ),
            {slot: job.output_folder(slot) for slot in node.stage.outputs},
            outcome.log,
        )
        return StageResult(node, Status.RAN, decision.reason, decision.key, record, record.elapsed_seconds)

    def _place(self, name: str, artifact: Artifact, folder: Path) -> None:
        source = self._graph.sources.get(name)
        if source is None:
            self._store.fetch(artifact, folder)
            return
        digests = {file.name: file.digest for file in artifact.files}
        for file in source.files:
            destination = folder / file.name
            destination.parent.mkdir(parents=True, exist_ok=True)
            # Of the copy: what the stage reads must be what its key says, even if the file is changed back later.
            if clone_file(file.path, destination, split_digest(digests[file.name])[0]) != digests[file.name]:
                raise _changed(file.path)

    def _check_unchanged(self, source: Source, artifact: Artifact) -> None:
        digests = {file.name: file.digest for file in artifact.files}
        for file in source.files:
            if not self._fingerprints.unchanged(file.path, digests[file.name]):
                raise _changed(file.path)

    def _failed(self, node: Node, decision: Run, outcome: Outcome) -> StageResult:
        return StageResult(
            node,
            Status.FAILED,
            decision.reason,
            decision.key,
            elapsed_seconds=round(outcome.elapsed_seconds, 3),
            error=outcome.error,
            advice=outcome.advice,
            log=self._keep_log(node, decision, outcome.log),
            tail=log_tail(outcome.log),
        )

    def _keep_log(self, node: Node, decision: Run, log: Path) -> Path | None:
        """Copy *log* to where it outlives the scratch folder. None when there is none, or no room for it."""
        kept = self._failures / f"{node.stage.name}-{decision.key[:16]}.log"
        try:
            self._failures.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
        except OSError:
            return None
        return kept


def _changed(path: Path) -> InputError:
    return InputError(
        f"{path} changed while it was being used, so nothing was stored.",
        advice="Build again when it has come to rest.",
    )
