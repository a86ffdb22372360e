"""Runs of a build on the workers of a cluster; what cannot leave this machine runs locally.

dask chooses one of the workers that can run a stage, waits until it has room, and runs the stage again on another one
if the worker is lost. A worker does what this machine would do, with the same code.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from distributed import Client, KilledWorker

from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.keys import cache_key
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.progress import Progress, Watch
from winml_dag.engine.resources import UNLIMITED, Admission, Allocation, Capacity, ResourceRequest, rounded
from winml_dag.engine.run import Damaged, LocalRuns, Runner, RunOutcome
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.inputs import Inputs
from winml_dag.pipeline.cluster.report import Requirement, Worker, folder_identity
from winml_dag.pipeline.cluster.worker import (
    CONNECT_SECONDS,
    MEMORY,
    NAME,
    PREFIX,
    Answer,
    Order,
    check_address,
    no_scheduler,
    perform,
    silence,
)
from winml_dag.store.artifact import Artifact
from winml_dag.store.records import Record
from winml_dag.store.remote.settings import TierSettings, shown
from winml_dag.store.store import Store

# Stages from other packages work in their user's folder, and run on that machine.
_BUILTIN = "winml_dag.stages."
# Each thread waits for one run. Threads are started on demand.
_THREADS = 1024
# A stage fails after it has lost all workers that could run it this many times.
_MOST_LOST = 3
_LOST_ADVICE = "Their logs may show why; the stage may need more memory than they have."


def runs_anywhere(node: Node) -> bool:
    """Whether *node* can run on another machine: it reads only its inputs, and its code is part of winml_dag."""
    stage = node.stage
    return (
        all(reference.startswith(_BUILTIN) for reference in (stage.work, stage.config))
        and node.command is None
        and node.folder is None
        and not (node.machine_facts or stage.works_in_place or stage.alone)
    )


@dataclass
class _Call:
    """A stage in progress. ``addresses``: workers that may still run it."""

    future: Any
    addresses: set[str]
    watch: Watch


class Workers:
    """The workers of a build; thread-safe. *read* creates a worker from an address and a report.

    Attributes:
        on_change: called whenever a worker joins or leaves; from any thread.
    """

    def __init__(self, client: Any, read: Callable[[str, str], Worker]) -> None:
        self.topic = f"winml-dag/{uuid4().hex}"
        self.on_change: Callable[[], None] = lambda: None
        self._client = client
        self._read = read
        self._workers: Mapping[str, Worker] = {}
        # By requirement, why each worker cannot satisfy it. Reset when a worker joins or leaves.
        self._fitness: dict[Requirement, Mapping[Worker, str]] = {}
        self._calls: dict[str, _Call] = {}
        self._lock = threading.RLock()
        self._stopped = False
        self._changed = threading.Event()
        client.subscribe_topic("all", self._on_workers)
        client.subscribe_topic(self.topic, self._on_progress)
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def fitness(self, need: Requirement) -> Mapping[Worker, str]:
        """Why each worker cannot satisfy *need*; empty if it can."""
        with self._lock:
            if need not in self._fitness:
                self._fitness[need] = {worker: worker.differs(need) for worker in self}
            return self._fitness[need]

    def perform(self, order: Order, able: list[Worker], memory_bytes: int, watch: Watch) -> Answer | None:
        """Execute *order* on one of *able* and wait for the answer; None if all of them have left.

        Raises:
            Interrupted: after :meth:`stop`.
            WinmlDagError: when too many workers were lost while they ran it, or the scheduler has gone, or a worker
                could not run it.
        """
        # A request that exceeds the memory of every worker gets all memory of the largest.
        memory_bytes = min(memory_bytes, max(worker.report.memory_bytes for worker in able))
        key = PREFIX + uuid4().hex
        with self._lock:
            if self._stopped:
                raise Interrupted("Stopped.")
            large = {worker.address for worker in able if worker.report.memory_bytes >= memory_bytes}
            if not (addresses := large & self._workers.keys()):
                return None
            future = self._client.submit(
                perform,
                pickle.dumps(order),
                key=key,
                workers=list(addresses),
                resources={MEMORY: memory_bytes},
                pure=False,
            )
            self._calls[key] = _Call(future, addresses, watch)
        try:
            answer = future.result()
            assert isinstance(answer, Answer)
            return answer
        except CancelledError:
            if self._stopped:
                raise Interrupted("Stopped.") from None
            if self._client.status != "running":
                raise StageError(
                    "The scheduler has gone.", advice="Start it again, and build again: what had finished is kept."
                ) from None
            return None
        except WinmlDagError:
            raise
        except KilledWorker as error:
            lost, last = error.allowed_failures + 1, error.last_worker.address
            raise StageError(
                f"{lost} workers were lost while they ran it, {last} the last.", advice=_LOST_ADVICE
            ) from error
        except Exception as error:
            raise StageError(f"Its worker met an unexpected error: {explanation(error)}.") from error
        finally:
            with self._lock:
                del self._calls[key]
            with suppress(Exception):  # a lost connection releases everything by itself
                future.release()

    def stop(self) -> None:
        """End everything that runs, and run nothing more."""
        with self._lock:
            self._stopped = True
            calls = list(self._calls.values())
        self._cancel(calls)

    def _cancel(self, calls: list[_Call]) -> None:
        # In the client's thread, from where this may be called: it does not wait for the scheduler.
        self._client.loop.add_callback(
            self._client.cancel, [call.future for call in calls], asynchronous=True, force=True
        )

    def _on_workers(self, event: tuple[float, Any]) -> None:
        if isinstance(event[1], dict) and event[1].get("action") in ("add-worker", "remove-worker"):
            self._changed.set()

    def _watch(self) -> None:
        # Not in the event thread: it would wait for a response that arrives through itself.
        while self._changed.wait():
            self._changed.clear()
            with suppress(Exception):  # the connection is lost, which others notice
                self._look()

    def _look(self) -> None:
        found = self._client.scheduler_info(n_workers=-1)["workers"]
        reports = {address: worker.get(NAME) for address, worker in found.items()}
        with self._lock:
            self._workers = {
                address: self._workers.get(address) or self._read(address, report)
                for address, report in reports.items()
                if isinstance(report, str)
            }
            self._fitness = {}
            # dask would wait forever for one of their workers to come back.
            self._cancel([call for call in self._calls.values() if not call.addresses & reports.keys()])
        self.on_change()

    def _on_progress(self, event: tuple[float, Any]) -> None:
        with suppress(KeyError, TypeError), self._lock:
            self._calls[event[1]["key"]].watch.update(Progress(**event[1]["progress"]))


def connect(address: str, security: Any = None) -> Any:
    """A client of the scheduler at *address*.

    Raises:
        UsageError: when there is none.
    """
    silence()
    # With an invalid address, a client waits 20 s before it fails.
    check_address(address)
    try:
        return Client(address, security=security, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise no_scheduler(address, explanation(error)) from error


@dataclass(frozen=True, kw_only=True)
class ClusterNeed(ResourceRequest):
    """The request of a run that goes to a worker. dask counts its memory."""

    requirement: Requirement


@dataclass(frozen=True, kw_only=True)
class _ClusterCapacity(Capacity):
    """The capacity of all workers together. ``here``: that of this machine, for local runs."""

    here: Capacity

    def taken(self, request: ResourceRequest) -> ResourceRequest:
        return request if isinstance(request, ClusterNeed) else self.here.taken(request)


class ClusterAdmission(Admission):
    """Hands over as many runs as the workers that can do them have slots; dask decides on the worker and the time.

    So no run waits in a worker for long, where a more urgent one could not overtake it.
    """

    def __init__(self, here: Capacity, workers: Workers) -> None:
        super().__init__(here)
        self._here = Admission(here)
        self._workers = workers
        # Runs handed over: by devices, or else by requirement.
        self._handed: Counter[object] = Counter()
        self._slots: dict[object, int] = {}
        # The request that has a reservation: on workers, dask keeps memory for the run that waits.
        self._reserved_need: ResourceRequest | None = None
        # The last request, which is that of the run that starts next.
        self.last_taken = ResourceRequest()
        self.update()

    def update(self) -> None:
        """Update after workers have joined or left; callable from any thread."""
        found = [worker.report for worker in self._workers if not worker.refusal]
        here = self._here.capacity
        memory = [report.memory_bytes for report in found] or [here.memory_bytes]
        # Requests for memory are rounded to a share of the smallest worker's.
        self._smallest_bytes = min(memory)
        # Almost nothing runs on this machine, so its slots say little about the total time.
        slots = sum(report.places for report in found) or here.slots
        total = UNLIMITED if UNLIMITED in memory else sum(memory)
        self.capacity = _ClusterCapacity(slots=slots, memory_bytes=total, here=here)
        self._slots = {}

    def placed(self, request: ResourceRequest, node: Node) -> ResourceRequest:
        if not runs_anywhere(node):
            return request
        memory_bytes = rounded(request.memory_bytes, self._smallest_bytes)
        return ClusterNeed(memory_bytes=memory_bytes, pools=request.pools, requirement=Requirement.of(node))

    @property
    def is_full(self) -> bool:
        return self._here.is_full and self._handed.total() >= self.capacity.slots

    @property
    def memory_bytes(self) -> int:
        return self._here.memory_bytes

    def fits(self, request: ResourceRequest) -> bool:
        if not isinstance(request, ClusterNeed):
            return self._here.fits(request)
        return self._handed.total() < self.capacity.slots and self._handed[_counted(request)] < self._slots_for(request)

    def fits_reserved(self) -> bool:
        need = self._reserved_need
        return self.fits(need) if isinstance(need, ClusterNeed) else self._here.fits_reserved()

    def reserve(self, request: ResourceRequest | None) -> None:
        self._reserved_need = request
        self._here.reserve(None if isinstance(request, ClusterNeed) else request)

    def take(self, request: ResourceRequest) -> Allocation:
        self.last_taken = request
        if not isinstance(request, ClusterNeed):
            return self._here.take(request)
        self._handed[_counted(request)] += 1
        return Allocation(request)

    def give_back(self, allocation: Allocation) -> None:
        if isinstance(allocation.request, ClusterNeed):
            self._handed[_counted(allocation.request)] -= 1
        else:
            self._here.give_back(allocation)

    def _slots_for(self, need: ClusterNeed) -> int:
        what = need.pools, need.requirement
        if what not in self._slots:
            able = [worker.report for worker, why in self._workers.fitness(need.requirement).items() if not why]
            # A device is shared by all workers of a machine.
            found = len({report.host for report in able}) if need.pools else sum(report.places for report in able)
            self._slots[what] = found or self.capacity.slots  # a run that no worker can do fails when it starts
        return self._slots[what]


def _counted(need: ClusterNeed) -> object:
    return need.pools or need.requirement


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
        run = self._pool.submit(self._run, node, decision, dict(inputs), memory_bytes, watch)
        self._follow(run, node, decision)

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
                able = [worker for worker, why in fitness.items() if not why]
                if not able:
                    raise _nobody_fits(fitness)
                shared = {worker.shares_store for worker in able}
                self._inputs.share(node, inputs, near=True in shared, far=False in shared)
                if (answer := self._workers.perform(order, able, memory_bytes, watch)) is not None:
                    return self._concluded(node, decision, answer)
            raise StageError(f"{_MOST_LOST} times all workers were lost that could run it.", advice=_LOST_ADVICE)
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
            log = self._keep(answer.log, f"{node.stage.name}-{decision.key[:16]}.log")
            return replace(outcome, node=node, reason=decision.reason, log=log)
        record = self._kept(decision, answer, outcome.record)
        if answer.in_remote:
            self._inputs.are_far(record)
        else:
            self._store.offer(record)
        if isinstance(outcome, Reuse):
            return Reuse(record, events.found(record))
        return replace(outcome, node=node, reason=decision.reason)

    def _kept(self, decision: Run, answer: Answer, record: Record | None) -> Record:
        """The record of the result, stored on this machine."""
        if record is None or record.cache_key != decision.key or cache_key(record.key_inputs) != decision.key:
            raise StageError(f"{answer.address} has answered with the result of something else.")
        if self._store.record(decision.key) != record:
            self._store.keep(record)
        if missing := self._store.missing(record.files()):
            names = ", ".join(file.name for file in missing)
            raise _unreachable(f"{answer.address} has made {names}, and it is not to be found from here", answer)
        return record

    def _keep(self, text: str, name: str) -> Path | None:
        """Write the log of a failure to its documented path; None if it is empty or there is no room."""
        log = self._store.failures / name
        if text:
            with suppress(OSError):
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(text, encoding="utf-8")
                return log
        return None


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
