"""Runs of a build on the workers of a cluster; what cannot leave this machine runs here as ever.

A worker does what this machine would do, with the same code: a process of its own, checks, publishing. What comes back
is a record, or what failed. A run whose worker is lost is placed anew, up to a bound: a stage that takes machines down
must not take one after the other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol
from uuid import uuid4

from winml_dag.canonical import JsonValue
from winml_dag.engine import reason
from winml_dag.engine.cluster.fleet import Fleet, Worker
from winml_dag.engine.cluster.inputs import Inputs
from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.decide import Reuse, Run
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.keys import cache_key
from winml_dag.engine.progress import Watch
from winml_dag.engine.run import Damaged, Displaced, Runner, RunOutcome
from winml_dag.engine.runs import LocalRuns
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.store.artifact import Artifact
from winml_dag.store.local import LocalStore
from winml_dag.store.record import Record

# A stage that was lost with so many workers fails.
MOST_LOST = 3
# Threads, each of which waits for one run. They are started as they are needed.
_THREADS = 1024
_MOST_NAMED = 4


class Link(Protocol):
    """The way to workers; used by several threads."""

    def perform(self, address: str, order: Order, watch: Watch, log: Path) -> Answer | None:
        """Have *order* carried out and wait for the answer; None when the worker has gone meanwhile. *watch* is told
        how far it is; lines of its log are put into the file *log* as they come.

        Raises:
            Interrupted: after :meth:`stop`.
            StageError: when there is no way to workers any more, or what comes back is no answer.
        """

    def stop(self) -> None:
        """End all that runs, and return when it has ended; run nothing more."""


@dataclass(frozen=True)
class Ordering:
    """What all orders of a run have in common. ``remotes``: as in :class:`Order`, for the worker at an address;
    ``failures``: where logs are kept.
    """

    topic: str
    scratch: Path
    failures: Path
    timeout_seconds: float | None
    rebuild: bool
    remotes: Callable[[str], JsonValue]


class ClusterRuns(LocalRuns):
    """See ``Runs``; *runner* does what runs here."""

    def __init__(
        self, runner: Runner, inputs: Inputs, store: LocalStore, fleet: Fleet, link: Link, ordering: Ordering
    ) -> None:
        super().__init__(runner, _THREADS)
        self._inputs = inputs
        self._store = store
        self._fleet = fleet
        self._link = link
        self._ordering = ordering
        self._lost: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None:
                self._link.stop()
        finally:
            super().__exit__(kind, error, trace)

    def nudge(self) -> None:
        """Workers have come or gone: look again what can begin. From any thread."""
        woken: Future[RunOutcome] = Future()
        woken.set_result(Displaced())
        self._waiting.add_future(woken)

    def start(self, node: Node, decision: Run, inputs: Mapping[str, Artifact], watch: Watch) -> RunOutcome | None:
        ticket = self._fleet.last_taken
        if ticket.seat is None:
            return self._refused(node, decision)
        worker = ticket.seat.worker
        if worker is None:
            return super().start(node, decision, inputs, watch)
        order = self._order(worker, node, decision, inputs, ticket.need.memory_bytes)
        run = self._pool.submit(self._run, worker, order, decision, watch)
        self._follow(run, node, decision)
        return None

    def _order(
        self, worker: Worker, node: Node, decision: Run, inputs: Mapping[str, Artifact], memory_bytes: int
    ) -> Order:
        how = self._ordering
        return Order(
            id=uuid4().hex,
            topic=how.topic,
            node=node,
            inputs=inputs,
            key=decision.key,
            timeout_seconds=how.timeout_seconds or node.stage.timeout_seconds,
            memory_bytes=memory_bytes,
            rebuild=how.rebuild,
            function=self._store.function,
            remotes=how.remotes(worker.address),
        )

    def _run(self, worker: Worker, order: Order, decision: Run, watch: Watch) -> RunOutcome:
        node = order.node
        try:
            self._inputs.share(node, order.inputs, far=order.remotes is not None)
            live = self._ordering.scratch / f"{node.stage.name}-{decision.key[:16]}.log"
            answer = self._link.perform(worker.address, order, watch, live)
            if answer is None or answer.ending == "stopped":
                return self._displaced(node, decision, worker)
            return self._concluded(order, decision, worker, answer)
        except Interrupted:
            raise
        except WinmlDagError as error:
            return _failed(node, decision, error.message, error.advice)

    def _concluded(self, order: Order, decision: Run, worker: Worker, answer: Answer) -> RunOutcome:
        node = order.node
        if answer.ending == "differs":
            return self._displaced(node, decision, worker)
        if answer.ending == "damaged" and answer.file is not None:
            if self._store.missing([answer.file]):
                return Damaged(answer.file)
            raise _unreachable(f"{worker.address} cannot get {answer.file.name}, which is here", answer)
        if answer.record is None:
            return self._failure(node, decision, answer)
        record = self._kept(decision, worker, answer, answer.record)
        if order.remotes is None:
            self._store.offer(record)
        else:
            self._inputs.are_far(record)
        if answer.ending == "found":
            return Reuse(record, reason.found(record))
        return StageResult(
            node, Status.RAN, decision.reason, decision.key, record, record.elapsed_seconds, progress=answer.progress
        )

    def _kept(self, decision: Run, worker: Worker, answer: Answer, record: Record) -> Record:
        """*record*, which is in the store of this machine now."""
        if record.cache_key != decision.key or cache_key(record.ingredients) != decision.key:
            raise StageError(f"{worker.address} has answered with the result of something else.")
        if self._store.record(decision.key) != record:
            self._store.keep(record)
        if missing := self._store.missing(record.files()):
            names = ", ".join(file.name for file in missing)
            raise _unreachable(f"{worker.address} has made {names}, and it is not to be found from here", answer)
        return record

    def _displaced(self, node: Node, decision: Run, worker: Worker) -> RunOutcome:
        with self._lock:
            self._lost[decision.key] += 1
            times = self._lost[decision.key]
        if times < MOST_LOST:
            return Displaced()
        return _failed(
            node,
            decision,
            f"{times} workers were lost, or changed, while they ran it, {worker.address} the last.",
            "What they have said before may tell why; maybe it takes more memory than they have.",
        )

    def _refused(self, node: Node, decision: Run) -> StageResult | Displaced:
        """Nobody makes what is in the key: said with what differs, each difference once."""
        reasons: dict[str, list[str]] = {}
        for address, why in self._fleet.why_nowhere(node).items():
            reasons.setdefault(why, []).append(address)
        if "" in reasons:
            return Displaced()  # the one that was meant has gone this moment, and there are others
        told = [f"{_addresses(addresses)} {why}" for why, addresses in reasons.items()] or ["there is no worker"]
        return _failed(
            node,
            decision,
            f"No worker can run it: {'; '.join(told)}.",
            "Install the same versions there, start a worker that has them, or build without --executor dask.",
        )

    def _failure(self, node: Node, decision: Run, answer: Answer) -> StageResult:
        log = self._ordering.failures / f"{node.stage.name}-{decision.key[:16]}.log"
        kept: Path | None = None
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(answer.log, encoding="utf-8")
            kept = log
        return StageResult(
            node,
            Status.FAILED,
            decision.reason,
            decision.key,
            elapsed_seconds=answer.elapsed_seconds,
            error=answer.error,
            advice=answer.advice,
            log=kept if answer.log else None,
            tail=answer.tail,
            progress=answer.progress,
            metrics=answer.metrics,
        )


def _failed(node: Node, decision: Run, error: str, advice: str) -> StageResult:
    return StageResult(node, Status.FAILED, decision.reason, decision.key, error=error, advice=advice)


def _unreachable(what: str, answer: Answer) -> StageError:
    told = f" It says: {' '.join(answer.told)}" if answer.told else ""
    return StageError(f"{what}.{told}", advice="Every worker has to reach the remote that this machine writes to.")


def _addresses(addresses: list[str]) -> str:
    if len(addresses) <= _MOST_NAMED:
        return ", ".join(addresses)
    return f"{', '.join(addresses[:_MOST_NAMED])} and {len(addresses) - _MOST_NAMED} more:"
