"""The workers of a build: their reports, and executing an order on one of them.

dask chooses one of the suitable workers, waits until it has room, and runs the order again on another one if the worker
is lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from distributed import Client, Future, KilledWorker

from winml_dag.engine.progress import Progress, Watch
from winml_dag.errors import Interrupted, StageError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.order import Answer, Order
from winml_dag.pipeline.cluster.report import Requirement, Worker
from winml_dag.pipeline.cluster.worker import (
    CONNECT_SECONDS,
    MEMORY,
    NAME,
    PREFIX,
    check_address,
    ended,
    no_scheduler,
    perform,
)

# How long workers may take to end their runs, in seconds; process groups are killed, so no cleanup takes longer.
_ENDING_SECONDS = 10.0


@dataclass(eq=False)
class _Call:
    """An order in progress. ``addresses``: workers that may still do it. ``heard``: receives what ends the wait."""

    addresses: set[str]
    watch: Watch
    log: Path
    heard: SimpleQueue[str] = field(default_factory=SimpleQueue)


class Workers:
    """The workers of a build; thread-safe. *read* creates a worker from an address and a report."""

    def __init__(self, client: Any, topic: str, read: Callable[[str, str], Worker]) -> None:
        self.topic = topic
        self._client = client
        self._read = read
        self._changed: Callable[[], None] = lambda: None
        self._workers: Mapping[str, Worker] = {}
        # By requirement, why each worker cannot satisfy it. Reset when a worker joins, leaves or changes.
        self._fitness: dict[Requirement, Mapping[Worker, str]] = {}
        self._calls: dict[str, _Call] = {}
        self._lock = threading.RLock()
        self._stopped = False
        # How many workers have left so far.
        self._gone = 0
        client.subscribe_topic("all", self._hear_of_workers)
        client.subscribe_topic(topic, self._hear_of_order)
        self._look()

    def follow(self, changed: Callable[[], None]) -> None:
        """Call *changed* whenever a worker joins, leaves or changes; from any thread."""
        self._changed = changed

    def __iter__(self) -> Any:
        return iter(self._workers.values())

    def fitness(self, need: Requirement) -> Mapping[Worker, str]:
        """Why each worker cannot satisfy *need*; empty if it can."""
        with self._lock:
            if need not in self._fitness:
                self._fitness[need] = {worker: worker.differs(need) for worker in self}
            return self._fitness[need]

    def perform(
        self, order: Order, able: Collection[Worker], memory_bytes: int, watch: Watch, log: Path
    ) -> Answer | None:
        """Execute *order* on one of *able* and wait for the answer; None if all of them have left.

        *watch* receives its progress; lines of its log are appended to the file *log*.

        Raises:
            Interrupted: after :meth:`stop`.
            StageError: when too many workers were lost while they ran it, or the scheduler has gone.
        """
        # A request that exceeds the memory of every worker gets all memory of the largest.
        memory_bytes = min(memory_bytes, max(worker.report.memory_bytes for worker in able))
        large = {worker.address for worker in able if worker.report.memory_bytes >= memory_bytes}
        with self._lock:
            if self._stopped:
                raise Interrupted("Stopped.")
            call = _Call(large & self._workers.keys(), watch, log)
            if not call.addresses:
                return None
            self._calls[order.id] = call
        future = self._client.submit(
            perform,
            order.to_text(),
            key=PREFIX + order.id,
            workers=list(call.addresses),
            resources={MEMORY: memory_bytes},
            pure=False,
        )
        try:
            future.add_done_callback(lambda _: call.heard.put("done"))
            heard = call.heard.get()
            if heard == "stopped":
                raise Interrupted("Stopped.")
            return self._answer(future) if heard == "done" else None
        finally:
            with self._lock:
                del self._calls[order.id]
            with suppress(Exception):  # a lost connection releases everything by itself
                future.release()

    def stop(self) -> None:
        """End everything that runs, wait until it has ended, and run nothing more."""
        with self._lock:
            self._stopped = True
            calls = dict(self._calls)
        for call in calls.values():
            call.heard.put("stopped")
        if calls:
            # Do not wait for an unresponsive worker: what it runs ends when the scheduler notices that this client is
            # gone.
            ending = threading.Thread(target=self._end, args=(list(calls),), daemon=True)
            ending.start()
            ending.join(_ENDING_SECONDS)

    def _answer(self, future: Future) -> Answer | None:
        if future.status == "cancelled":
            if self._client.status != "running":
                raise StageError(
                    "The scheduler has gone.", advice="Start it again, and build again: what had finished is kept."
                )
            return None
        if future.status != "finished":
            error = future.exception()
            if isinstance(error, KilledWorker):
                lost, last = error.allowed_failures + 1, error.last_worker.address
                raise StageError(
                    f"{lost} workers were lost while they ran it, {last} the last.",
                    advice="What they have said before may tell why; maybe it takes more memory than they have.",
                )
            raise StageError(f"A worker could not take an order: {explanation(error)}.")
        answer = Answer.from_text(future.result())
        if answer.ending == "differs":
            with self._lock:
                if answer.address in self._workers:
                    self._replace({**self._workers, answer.address: self._read(answer.address, answer.report)})
        return answer

    def _end(self, orders: list[str]) -> None:
        """Make workers end *orders*, and wait until they have."""
        with suppress(Exception):  # without a scheduler, workers end everything by themselves
            self._client.cancel([Future(PREFIX + order, self._client) for order in orders], force=True)
            self._client.run(ended, orders, _ENDING_SECONDS, workers=list(self._workers), on_error="ignore")

    def _hear_of_workers(self, event: tuple[float, Any]) -> None:
        message = event[1]
        action = message.get("action") if isinstance(message, dict) else None
        if action == "remove-worker":
            self._forget(str(message.get("worker")))
        elif action == "add-worker":
            # Not in the event thread: it would wait for a response that arrives through itself.
            threading.Thread(target=self._look_again, daemon=True).start()

    def _forget(self, address: str) -> None:
        with self._lock:
            self._gone += 1
            self._replace({other: worker for other, worker in self._workers.items() if other != address})
            for call in self._calls.values():
                call.addresses.discard(address)
                # dask would wait forever for one of them to come back.
                if not call.addresses:
                    call.heard.put("lost")

    def _look_again(self) -> None:
        with suppress(Exception):  # the connection is lost, which others notice
            self._look()

    def _look(self) -> None:
        while True:
            gone = self._gone
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            with self._lock:
                # Information from before a worker left would list that worker forever.
                if gone == self._gone:
                    return self._replace(
                        {
                            address: self._workers.get(address) or self._read(address, worker[NAME])
                            for address, worker in workers.items()
                            if isinstance(worker.get(NAME), str)
                        }
                    )

    def _replace(self, workers: Mapping[str, Worker]) -> None:
        with self._lock:
            self._workers = workers
            self._fitness = {}
        self._changed()

    def _hear_of_order(self, event: tuple[float, Any]) -> None:
        message = event[1]
        with self._lock:
            call = self._calls.get(str(message.get("order"))) if isinstance(message, dict) else None
        if call is None:
            return
        with suppress(KeyError, TypeError, OSError):
            if isinstance(progress := message["progress"], dict):
                call.watch.tell(Progress(**progress))
            if lines := message["log"]:
                with call.log.open("a", encoding="utf-8") as log:
                    log.write(str(lines))


def silence() -> None:
    """Silence dask's logging: this program reports what matters."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)


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
