"""Runs of a build on the workers of a cluster; what cannot leave this machine runs locally.

A worker does what this machine would do, with the same code: its own process, checks, publishing. It returns a record
or a failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.keys import cache_key
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.progress import Watch
from winml_dag.engine.resources import UNLIMITED, Admission, Allocation, Capacity, ResourceRequest, rounded
from winml_dag.engine.run import Damaged, LocalRuns, Runner, RunOutcome
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.pipeline.cluster.inputs import Inputs
from winml_dag.pipeline.cluster.order import Answer, Order, is_ours
from winml_dag.pipeline.cluster.report import Requirement, Worker, folder_identity
from winml_dag.pipeline.cluster.workers import Workers
from winml_dag.store.artifact import Artifact
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import TierSettings
from winml_dag.store.store import Store

# A stage fails after it has lost all workers that could run it this many times.
_MOST_LOST = 3
# Each thread waits for one run. Threads are started on demand.
_THREADS = 1024
_MOST_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class ClusterNeed(ResourceRequest):
    """The request of a run that goes to a worker. dask counts its memory."""

    requirement: Requirement


@dataclass(frozen=True, kw_only=True)
class _ClusterCapacity(Capacity):
    """The capacity of all workers together.

    ``smallest_bytes``: the memory of the smallest worker, which sets the granularity of requests. ``here``: the
    capacity of this machine, for local runs.
    """

    smallest_bytes: int
    here: Capacity

    def taken(self, need: ResourceRequest) -> ResourceRequest:
        if not isinstance(need, ClusterNeed):
            return self.here.taken(need)
        return replace(need, memory_bytes=rounded(need.memory_bytes, self.smallest_bytes))


class ClusterAdmission(Admission):
    """Hands over as many runs as the workers that can do them have slots; dask decides on the worker and the time.

    So no run waits in a worker for long, where a more urgent one could not overtake it.
    """

    def __init__(self, here: Capacity, workers: Workers) -> None:
        super().__init__(here)
        self._here = Admission(here)
        self._workers = workers
        # Runs handed over: by devices, or else by requirement; and the memory of all.
        self._handed: Counter[object] = Counter()
        self._handed_bytes = 0
        self._slots: dict[ClusterNeed, int] = {}
        self._waits: ResourceRequest | None = None
        # The last allocation, which belongs to the run that starts next.
        self.last_taken = Allocation(ResourceRequest())
        self.update()

    def update(self) -> None:
        """Update after workers have joined, left or changed; callable from any thread."""
        found = [worker.report for worker in self._workers if not worker.refusal]
        here = self._here.capacity
        memory = [report.memory_bytes for report in found] or [here.memory_bytes]
        # Almost nothing runs on this machine, so its slots say little about the total time.
        places = sum(report.places for report in found) or here.places
        total = UNLIMITED if UNLIMITED in memory else sum(memory)
        self.capacity = _ClusterCapacity(places=places, memory_bytes=total, smallest_bytes=min(memory), here=here)
        self._slots = {}

    def placed(self, need: ResourceRequest, node: Node) -> ResourceRequest:
        if not is_ours(node):
            return need
        return ClusterNeed(memory_bytes=need.memory_bytes, pools=need.pools, requirement=Requirement.of(node))

    @property
    def memory_bytes(self) -> int:
        return self._here.memory_bytes + self._handed_bytes

    @property
    def is_full(self) -> bool:
        return self._here.is_full and self._is_cluster_full

    @property
    def _is_cluster_full(self) -> bool:
        return self._handed.total() >= self.capacity.places

    def fits(self, need: ResourceRequest) -> bool:
        if not isinstance(need, ClusterNeed):
            return self._here.fits(need)
        return not self._is_cluster_full and self._handed[_counted(need)] < self._slots_for(need)

    def _slots_for(self, need: ClusterNeed) -> int:
        slots = self._slots
        if need not in slots:
            able = [worker.report for worker, why in self._workers.fitness(need.requirement).items() if not why]
            # A device is shared by all workers of a machine.
            found = len({report.host for report in able}) if need.pools else sum(report.places for report in able)
            slots[need] = found or self.capacity.places  # a run that no worker can do fails when it starts
        return slots[need]

    def fits_reserved(self) -> bool:
        if isinstance(self._waits, ClusterNeed):
            return self.fits(self._waits)
        return self._here.fits_reserved()

    def reserve(self, need: ResourceRequest | None) -> None:
        self._waits = need
        self._here.reserve(None if isinstance(need, ClusterNeed) else need)

    def take(self, need: ResourceRequest) -> Allocation:
        self.last_taken = Allocation(need) if isinstance(need, ClusterNeed) else self._here.take(need)
        self._count(self.last_taken, 1)
        return self.last_taken

    def give_back(self, allocation: Allocation) -> None:
        self._count(allocation, -1)
        if not isinstance(allocation.request, ClusterNeed):
            self._here.give_back(allocation)

    def _count(self, allocation: Allocation, sign: int) -> None:
        if isinstance(allocation.request, ClusterNeed):
            self._handed[_counted(allocation.request)] += sign
            self._handed_bytes += sign * allocation.request.memory_bytes


def _counted(need: ClusterNeed) -> object:
    return need.pools or need.requirement


class ClusterRuns(LocalRuns):
    """See ``Runs``; *runner* does local runs.

    *remotes*: of the build. Logs of runs go to *scratch*, and those of failures to the store.
    """

    def __init__(
        self,
        runner: Runner,
        inputs: Inputs,
        store: Store,
        workers: Workers,
        admission: ClusterAdmission,
        remotes: tuple[TierSettings, ...],
        scratch: Path,
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
        self._remotes = remotes
        self._scratch = scratch
        self._timeout_seconds = timeout_seconds
        self._rebuild = rebuild

    def __enter__(self) -> Self:
        super().__enter__()
        self._workers.follow(self._look_again)
        self._admission.update()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.follow(lambda: None)
        try:
            if kind is not None:
                self._workers.stop()
        finally:
            super().__exit__(kind, error, trace)

    def _look_again(self) -> None:
        """Check what can start after workers have joined, left or changed; callable from any thread."""
        self._admission.update()
        self._wake()

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> None:
        if not is_ours(node):
            super().start(node, decision, inputs, watch)
            return
        order = Order(
            id="",
            topic=self._workers.topic,
            node=node,
            inputs=dict(inputs),
            key=decision.key,
            timeout_seconds=self._timeout_seconds or node.stage.timeout_seconds,
            rebuild=self._rebuild,
            store=self._identity,
            function=self._store.function,
            remotes=self._remotes,
        )
        memory_bytes = self._admission.last_taken.request.memory_bytes
        self._follow(self._pool.submit(self._run, order, memory_bytes, decision, watch), node, decision)

    def _run(self, order: Order, memory_bytes: int, decision: Run, watch: Watch) -> RunOutcome:
        node = order.node
        log = f"{node.stage.name}-{decision.key[:16]}.log"
        failed = partial(StageResult, node, Status.FAILED, decision.reason, decision.key)
        # By address, why a worker that seemed suitable has declined.
        refused: dict[str, str] = {}
        lost = 0
        try:
            while lost < _MOST_LOST:
                fitness = {
                    worker: refused.get(worker.address, why)
                    for worker, why in self._workers.fitness(Requirement.of(node)).items()
                }
                able = [worker for worker, why in fitness.items() if not why]
                if not able:
                    raise _nobody_fits(fitness)
                stores = {worker.has_our_store for worker in able}
                self._inputs.share(node, order.inputs, near=True in stores, far=False in stores)
                attempt = order.model_copy(update={"id": uuid4().hex})
                answer = self._workers.perform(attempt, able, memory_bytes, watch, self._scratch / log)
                if answer is None:
                    lost += 1
                elif answer.ending == "differs":
                    refused[answer.address] = answer.error
                elif answer.ending == "failed":
                    return failed(
                        elapsed_seconds=answer.elapsed_seconds,
                        error=answer.error,
                        advice=answer.advice,
                        log=_keep(answer.log, self._store.failures / log),
                        tail=answer.tail,
                        progress=answer.progress,
                        metrics=answer.metrics,
                    )
                else:
                    return self._concluded(node, decision, answer)
        except Interrupted:
            raise
        except WinmlDagError as error:
            return failed(error=error.message, advice=error.advice)
        return failed(
            error=f"{lost} times all workers were lost that could run it.",
            advice="What they have said before may tell why; maybe it takes more memory than they have.",
        )

    def _concluded(self, node: Node, decision: Run, answer: Answer) -> RunOutcome:
        if answer.file is not None:
            if self._store.missing([answer.file]):
                return Damaged(answer.file)
            raise _unreachable(f"{answer.address} cannot get {answer.file.name}, which is here", answer)
        record = self._kept(decision, answer)
        if answer.in_remote:
            self._inputs.are_far(record)
        else:
            self._store.offer(record)
        if answer.ending == "found":
            return Reuse(record, events.found(record))
        return StageResult(
            node, Status.RAN, decision.reason, decision.key, record, record.elapsed_seconds, progress=answer.progress
        )

    def _kept(self, decision: Run, answer: Answer) -> Record:
        """The record of the result, stored on this machine."""
        record = answer.record
        if record is None or record.cache_key != decision.key or cache_key(record.key_inputs) != decision.key:
            raise StageError(f"{answer.address} has answered with the result of something else.")
        if self._store.record(decision.key) != record:
            self._store.keep(record)
        if missing := self._store.missing(record.files()):
            names = ", ".join(file.name for file in missing)
            raise _unreachable(f"{answer.address} has made {names}, and it is not to be found from here", answer)
        return record


def _nobody_fits(fitness: Mapping[Worker, str]) -> StageError:
    """The error for a stage that no worker can run, with each difference once."""
    reasons: dict[str, list[str]] = {}
    for worker, why in sorted(fitness.items(), key=lambda item: item[0].address):
        reasons.setdefault(why, []).append(worker.address)
    told = [f"{_addresses(addresses)} {why}" for why, addresses in reasons.items()] or ["there is no worker"]
    return StageError(
        f"No worker can run it: {'; '.join(told)}.",
        advice="Install the same versions there, start a worker that has them, or build without --executor dask.",
    )


def _unreachable(what: str, answer: Answer) -> StageError:
    told = f" It says: {' '.join(answer.told)}" if answer.told else ""
    return StageError(f"{what}.{told}", advice="Every worker has to reach the remote that this machine writes to.")


def _addresses(addresses: list[str]) -> str:
    if len(addresses) <= _MOST_NAMED:
        return ", ".join(addresses)
    return f"{', '.join(addresses[:_MOST_NAMED])} and {len(addresses) - _MOST_NAMED} more:"


def _keep(text: str, log: Path) -> Path | None:
    """Write the log of a failure to its documented path; None if it is empty or there is no room."""
    if text:
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(text, encoding="utf-8")
            return log
    return None
