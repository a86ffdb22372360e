"""Runs of a build on the workers of a cluster; what cannot leave this machine runs locally.

A worker does what this machine would do, with the same code. Its inputs are made available to it first. Outputs of
stages are in the store already; the user's files are stored as if a stage had made them, under a key of their content.
So they are garbage-collected like anything else, and are uploaded to a remote like results.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from winml_dag import TOOL_ID
from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.exchange import Watch
from winml_dag.engine.graph import Graph
from winml_dag.engine.inputs import place_source
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.run import Damaged, LocalRuns, Runner, RunOutcome
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.pipeline.cluster.report import Requirement, Worker, folder_identity
from winml_dag.pipeline.cluster.worker import Answer, Order
from winml_dag.pipeline.cluster.workers import LOST_ADVICE, ClusterAdmission, Workers, runs_anywhere
from winml_dag.store.artifact import Artifact
from winml_dag.store.records import KeyInputs, Record, cache_key
from winml_dag.store.remote.settings import TierSettings, shown
from winml_dag.store.store import Store

# Under which the user's files are stored, as if a stage had made them.
_STAGE = "source"
_SLOT = "files"
# Each thread waits for one run. Threads are started on demand.
_THREADS = 1024
# A stage fails after it has lost all workers that could run it this many times.
_MOST_LOST = 3


class Inputs:
    """Shares the inputs of nodes of one graph, each once; used by several threads."""

    def __init__(self, graph: Graph, store: Store, scratch: Path) -> None:
        self._graph = graph
        self._store = store
        self._scratch = scratch
        self._lock = threading.Lock()
        # Digests of artifacts that are in the store, and of those that are in the remote.
        self._here: set[str] = set()
        self._uploaded: set[str] = set()

    def share(self, node: Node, inputs: Mapping[str, Artifact], *, fetch: bool, upload: bool) -> None:
        """Store the artifacts that *node* reads.

        With *fetch*, fetch all of their bytes for workers that use the same store. With *upload*, upload them to the
        remote, for workers with another store.

        Raises:
            InputError: for a source that has changed since the key was made.
            StoreError: when there is no room for it.
        """
        # One at a time: all of them go to one disk or one remote, and callers mostly wait for the same artifacts.
        with self._lock:
            for slot, artifact in inputs.items():
                if artifact.digest not in self._here:
                    self._store_source(node.inputs[slot], artifact)
                    self._here.add(artifact.digest)
            if fetch:
                # An artifact found in the remote may be only there: the record of a hit comes without its bytes.
                self._store.fetch_ahead([file for artifact in inputs.values() for file in artifact.files])
            new = [artifact for artifact in inputs.values() if upload and artifact.digest not in self._uploaded]
            for artifact in new:
                if not self._store.remote_only(artifact.files):
                    self._store.offer(_record(artifact))
            if new:
                self._store.settle()
            self._uploaded.update(artifact.digest for artifact in new)

    def are_in_remote(self, record: Record) -> None:
        """Record that the outputs of *record* are in the remote, because a worker has uploaded them."""
        with self._lock:
            self._uploaded.update(artifact.digest for artifact in record.outputs.values())

    def _store_source(self, name: str, artifact: Artifact) -> None:
        source = self._graph.sources.get(name)
        if source is None:
            return
        record = _record(artifact)
        known = self._store.record(record.cache_key)
        if known is None or self._store.missing(known.files()):
            folder = self._scratch / f"source-{uuid4().hex}"
            try:
                place_source(source, artifact, folder)
                self._store.publish(record, {_SLOT: folder})
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _record(artifact: Artifact) -> Record:
    key_inputs = KeyInputs(_STAGE, 1, {}, {_SLOT: artifact.digest}, {})
    return Record(
        cache_key=cache_key(key_inputs),
        config_hash=key_inputs.config_hash,
        key_inputs=key_inputs,
        outputs={_SLOT: artifact},
        made_by=TOOL_ID,
    )


class ClusterRuns(LocalRuns):
    """See ``Runs``; *runner* does local runs.

    *remotes*: of the build. Logs of failures go to the store.
    """

    def __init__(
        self,
        runner: Runner,
        inputs: Inputs,
        store: Store,
        workers: Workers,
        admission: ClusterAdmission,
        remotes: tuple[TierSettings, ...],
        *,
        timeout_seconds: float | None,
        rebuild: bool,
    ) -> None:
        super().__init__(runner, _THREADS)
        self._inputs = inputs
        self._store = store
        self._identity = folder_identity(store.folder)
        self._workers = workers
        self._admission = admission
        # Passwords stay on each machine: a worker inserts its own.
        self._remotes = tuple(replace(tier, url=shown(tier.url)) for tier in remotes)
        self._timeout_seconds = timeout_seconds
        self._rebuild = rebuild

    def __enter__(self) -> Self:
        super().__enter__()
        self._workers.on_change = self._look_again
        self._admission.update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.on_change = lambda: None
        try:
            if kind is not None:
                self._workers.stop()
        finally:
            super().__exit__(kind, error, trace)

    def _look_again(self) -> None:
        """Check what can start after workers have joined or left; callable from any thread."""
        self._admission.update()
        self._wake()

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        if not runs_anywhere(node):
            super().start(node, decision, inputs, watch)
            return
        memory_bytes = self._admission.last_taken.memory_bytes
        self._submit(node, decision, partial(self._run, node, decision, dict(inputs), memory_bytes, watch))

    def _run(
        self, node: Node, decision: Run, inputs: dict[str, Artifact], memory_bytes: int, watch: Watch
    ) -> RunOutcome:
        order = Order(
            topic=self._workers.topic,
            # Paths of this machine are meaningless on the worker.
            node=replace(node, tools={}, interpreter=None),
            inputs=inputs,
            key=decision.key,
            timeout_seconds=self._timeout_seconds or node.stage.timeout_seconds,
            rebuild=self._rebuild,
            store=self._identity,
            function=self._store.function,
            remotes=self._remotes,
        )
        try:
            for _ in range(_MOST_LOST):
                fitness = self._workers.fitness(Requirement.of(node))
                if not (able := [worker for worker, why in fitness.items() if not why]):
                    raise _nobody_fits(fitness)
                shared = {worker.shares_store for worker in able}
                self._inputs.share(node, inputs, fetch=True in shared, upload=False in shared)
                if (answer := self._workers.perform(order, able, memory_bytes, watch)) is not None:
                    return self._concluded(node, decision, answer)
            raise StageError(f"{_MOST_LOST} times all workers were lost that could run it.", advice=LOST_ADVICE)
        except Interrupted:
            raise
        except WinmlDagError as error:
            result = StageResult(node, Status.FAILED, decision.reason, decision.key)
            return replace(result, error=error.message, advice=error.advice)

    def _concluded(self, node: Node, decision: Run, answer: Answer) -> RunOutcome:
        outcome = answer.outcome
        if isinstance(outcome, Damaged):
            if self._store.missing([outcome.file]):
                return outcome
            raise _unreachable(f"{answer.address} cannot get {outcome.file.name}, which is here", answer)
        if isinstance(outcome, StageResult) and outcome.status is Status.FAILED:
            path = self._store.failures / f"{node.stage.name}-{decision.key[:16]}.log"
            log = None
            with suppress(OSError):  # without a log if there is no room
                if answer.log:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(answer.log, encoding="utf-8")
                    log = path
            return replace(outcome, node=node, reason=decision.reason, log=log)
        record = outcome.record
        if record is None or record.cache_key != decision.key or cache_key(record.key_inputs) != decision.key:
            raise StageError(f"{answer.address} has answered with the result of something else.")
        if self._store.record(decision.key) != record:
            self._store.keep(record)
        if missing := self._store.missing(record.files()):
            names = ", ".join(file.name for file in missing)
            raise _unreachable(f"{answer.address} has made {names}, and it is not to be found from here", answer)
        if answer.in_remote:
            self._inputs.are_in_remote(record)
        else:
            self._store.offer(record)
        if isinstance(outcome, Reuse):
            return Reuse(record, events.found(record))
        return replace(outcome, node=node, reason=decision.reason)


def _nobody_fits(fitness: Mapping[Worker, str]) -> StageError:
    """The error for a stage that no worker can run, with each difference once."""
    found = sorted((why, worker.address) for worker, why in fitness.items())
    reasons = [
        f"{', '.join(address for _, address in each)} {why}" for why, each in groupby(found, key=lambda pair: pair[0])
    ]
    return StageError(
        f"No worker can run it: {'; '.join(reasons) or 'there is no worker'}.",
        advice="Install the same versions there, start a worker that has them, or build without --executor dask.",
    )


def _unreachable(what: str, answer: Answer) -> StageError:
    warnings = f" It says: {' '.join(answer.warnings)}" if answer.warnings else ""
    return StageError(f"{what}.{warnings}", advice="Every worker has to reach the remote that this machine writes to.")
