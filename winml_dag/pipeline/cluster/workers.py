"""The workers of a build: what each can run, how many runs go to them, and the answer to each run.

dask chooses one of the workers that can run a stage, waits until it has room, and runs the stage again on another one
if the worker is lost.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from distributed import Client, KilledWorker

from winml_dag.engine.exchange import Progress, Watch
from winml_dag.engine.resources import UNLIMITED, Admission, Allocation, Capacity, ResourceRequest, rounded
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.report import Requirement, Worker
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

# Stages from other packages work in their user's folder, and run on that machine.
_BUILTIN = "winml_dag.stages."
LOST_ADVICE = "Their logs may show why; the stage may need more memory than they have."


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
                f"{lost} workers were lost while they ran it, {last} the last.", advice=LOST_ADVICE
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


def runs_anywhere(node: Node) -> bool:
    """Whether *node* can run on another machine: it reads only its inputs, and its code is part of winml_dag."""
    stage = node.stage
    return (
        all(reference.startswith(_BUILTIN) for reference in (stage.work, stage.config))
        and node.command is None
        and node.folder is None
        and not (node.machine_facts or stage.works_in_place or stage.alone)
    )


@dataclass(frozen=True)
class ClusterNeed(ResourceRequest):
    """The request of a run that goes to a worker. dask counts its memory."""

    requirement: Requirement = field(kw_only=True)


@dataclass(frozen=True)
class _ClusterCapacity(Capacity):
    """The capacity of all workers together. ``here``: that of this machine, for local runs."""

    here: Capacity = field(kw_only=True)

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
