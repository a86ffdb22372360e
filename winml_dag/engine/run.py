"""One stage from decision to record: claim the key, place the inputs, do the work, check, publish.

The store sees nothing until the work is done and its inputs are verified to be unchanged. The scratch folder is removed
in any case.

The scheduler sees only :class:`Runs`: it starts runs, learns which have ended, and reads a clock. So another clock can
drive it, and runs may happen on other machines.
"""

from __future__ import annotations

import datetime
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.exchange import LOG_FILE, Watch, log_tail, shorten_log
from winml_dag.engine.execute import Executor, Job, LocalExecutor, Outcome
from winml_dag.engine.graph import Graph
from winml_dag.engine.inputs import JobFolder, JobFolders, Preparer
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.stage import FileAccess, Node
from winml_dag.errors import Interrupted, WinmlDagError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.blobs import BlobDamaged
from winml_dag.store.digest import Fingerprints
from winml_dag.store.files import in_words
from winml_dag.store.records import Record
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.inplace import InPlace


@dataclass(frozen=True)
class Damaged:
    """An input could not be fetched: its maker has to run again first."""

    file: FileEntry


# The outcome of a run. Reuse: another process made the result while this one waited.
RunOutcome: TypeAlias = StageResult | Reuse | Damaged


class Runner:
    """Runs decided nodes of one graph; safe to call from several threads.

    *scratch* is a folder of this run alone. *failures* is the folder where logs of failed stages are kept.
    *timeout_seconds* replaces the limit that each stage declares. *in_place* writes the outputs of nodes that have a
    folder; without it no stage reads or writes a user's folder. *access*: how stages that work in place access files.
    """

    def __init__(
        self,
        graph: Graph,
        store: Store,
        executor: Executor,
        fingerprints: Fingerprints,
        *,
        scratch: Path,
        failures: Path,
        made_by: str,
        rebuild: bool,
        timeout_seconds: float | None = None,
        in_place: InPlace | None = None,
        access: FileAccess = FileAccess.FREE,
    ) -> None:
        self._store = store
        self._executor = executor
        self._preparer = Preparer(graph, store, fingerprints, in_place, access)
        self._in_place = in_place
        self._folders = JobFolders(scratch)
        self._failures = failures
        self._made_by = made_by
        self._rebuild = rebuild
        self._timeout = timeout_seconds
        # How many threads are in :meth:`run`, and none enters any more once it is stopped.
        self._active = 0
        self._stopped = False
        self._changed = threading.Condition()

    def stop(self) -> None:
        """End everything that runs or waits, start nothing more, and return when nothing uses the scratch folder."""
        with self._changed:
            self._stopped = True
        self._executor.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._active)

    def close(self) -> None:
        """Release what was kept for further stages, after all have ended."""
        self._folders.clear()
        if isinstance(self._executor, LocalExecutor):
            self._executor.close()

    def run(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch | None = None) -> RunOutcome:
        """Run *node* as decided; *inputs* has its artifacts by slot.

        *watch* follows the progress of the work.

        Raises:
            Interrupted: after :meth:`stop`.
        """
        with self._changed:
            if self._stopped:
                raise Interrupted("Stopped.")
            self._active += 1
        try:
            with self._store.claim(decision.key, lambda: self._stopped):
                if found := self._made_meanwhile(decision.key):
                    return found
                with self._folders.folder(node) as folder:
                    return self._run(folder, node, decision, inputs, watch or Watch())
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def _made_meanwhile(self, key: str) -> Reuse | None:
        if self._rebuild:
            return None
        record = self._store.record(key)
        if record is None or self._store.missing(record.files()):
            return None
        return Reuse(record, events.found(record))

    def _run(
        self, folder: JobFolder, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch
    ) -> StageResult | Damaged:
        """Prepare, do the work, check outputs and inputs, publish, and write outputs to the user's folder."""
        outcome, job, log = Outcome(), None, folder.path / LOG_FILE
        try:
            # A full disk, or a system that cannot start processes, fails this stage like any other error.
            with in_words(f"Cannot run {node.id}"):
                folder.path.mkdir(exist_ok=True)
                limit = self._timeout or node.stage.timeout_seconds
                job = self._preparer.prepare(folder.path, node, inputs, limit)
                watch.follow(folder.path)
                outcome = self._executor.run(job)
                shorten_log(log)
                self._preparer.check(job, inputs)
                if not outcome.error:
                    if job.at is not None or node.paths:
                        # Imported here, as below: most builds have no stages of a recipe's own.
                        from winml_dag.engine.sandbox import check_done

                        check_done(job)
                    record = self._publish(job, decision, inputs, outcome)
                    folder.keep = True
                    if self._in_place is not None:
                        self._in_place.put(node, record)
                    return StageResult(
                        node,
                        Status.RAN,
                        decision.reason,
                        decision.key,
                        record,
                        record.elapsed_seconds,
                        progress=outcome.progress,
                    )
        except WinmlDagError as error:
            if job is None and isinstance(error, BlobDamaged):
                return Damaged(error.file)
            outcome = replace(outcome, error=error.message, advice=error.advice)
        if job is not None and job.own is not None:
            from winml_dag.engine.sandbox import explain

            outcome = explain(job, outcome, log_tail(log))
        return self._failed(node, decision, outcome, log)

    def _publish(self, job: Job, decision: Run, inputs: Mapping[str, Artifact], outcome: Outcome) -> Record:
        return self._store.publish(
            Record(
                cache_key=decision.key,
                config_hash=decision.key_inputs.config_hash,
                key_inputs=decision.key_inputs,
                outputs={},
                metrics=outcome.metrics,
                elapsed_seconds=round(outcome.elapsed_seconds, 3),
                made_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                made_by=self._made_by,
                input_files={slot: artifact.to_json() for slot, artifact in inputs.items()},
            ),
            {slot: job.output_folder(slot) for slot in job.node.stage.outputs},
            job.log,
        )

    def _failed(self, node: Node, decision: Run, outcome: Outcome, log: Path) -> StageResult:
        return StageResult(
            node,
            Status.FAILED,
            decision.reason,
            decision.key,
            elapsed_seconds=round(outcome.elapsed_seconds, 3),
            error=outcome.error,
            advice=outcome.advice,
            log=self._keep_log(f"{node.stage.name}-{decision.key[:16]}.log", log),
            tail=() if outcome.is_own_message else log_tail(log),
            progress=outcome.progress,
            metrics=outcome.metrics,
        )

    def _keep_log(self, name: str, log: Path) -> Path | None:
        """Copy *log* to where it outlives the scratch folder. None if it does not exist or there is no room."""
        kept = self._failures / name
        try:
            self._failures.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
        except OSError:
            return None
        return kept


# Python handles a signal that arrives just before a wait begins only when that wait ends; on Windows, one that arrives
# during the wait too. Without a limit, an interrupt could take effect only after the stage.
_PATIENCE_SECONDS = 0.2 if os.name == "nt" else 1.0


@dataclass(frozen=True, eq=False)
class Ended:
    """A run that has ended, and its outcome."""

    node: Node
    decision: Run
    outcome: RunOutcome


class Runs(Protocol):
    """The runs of a build. Used from one thread, in its block; leaving it with an exception ends all runs first."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def now(self) -> float:
        """Seconds since any fixed moment."""

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        """Start a run with the artifacts by slot. *watch* follows the progress of the work."""

    def wait(self) -> list[Ended]:
        """Wait until a run has ended; may return an empty list."""


class LocalRuns:
    """Runs of *runner*, *jobs* at a time, each in a thread that prepares it, waits for its process, and publishes.

    Threads are started on demand.
    """

    def __init__(self, runner: Runner, jobs: int) -> None:
        self._runner = runner
        self._jobs = jobs
        self._underway = 0
        self._threads: list[threading.Thread] = []
        # None ends a thread.
        self._submitted: SimpleQueue[tuple[Node, Run, Callable[[], RunOutcome]] | None] = SimpleQueue()
        # None only wakes up :meth:`wait`.
        self._ended: SimpleQueue[Ended | BaseException | None] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                # What was submitted and has not begun ends at once.
                self._runner.stop()
            for _ in self._threads:
                self._submitted.put(None)
            for thread in self._threads:
                if thread.is_alive():  # an interrupt may have prevented its start
                    thread.join()
        finally:
            self._runner.close()

    def now(self) -> float:
        return time.monotonic()

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        self._submit(node, decision, partial(self._runner.run, node, decision, inputs, watch))

    def wait(self) -> list[Ended]:
        found = []
        with suppress(Empty):
            found.append(self._ended.get(timeout=_PATIENCE_SECONDS))
            while True:
                found.append(self._ended.get_nowait())
        ended = []
        for each in found:
            if isinstance(each, BaseException):
                raise each
            if each is not None:
                self._underway -= 1
                ended.append(each)
        return ended

    def _submit(self, node: Node, decision: Run, run: Callable[[], RunOutcome]) -> None:
        """Call *run* in a thread; :meth:`wait` returns or raises what it does."""
        self._underway += 1
        self._submitted.put((node, decision, run))
        if len(self._threads) < min(self._underway, self._jobs):
            thread = threading.Thread(target=self._work, name="stage")
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (submitted := self._submitted.get()) is not None:
            node, decision, run = submitted
            try:
                self._ended.put(Ended(node, decision, run()))
            except BaseException as error:
                self._ended.put(error)

    def _wake(self) -> None:
        """Make :meth:`wait` return; callable from any thread."""
        self._ended.put(None)
