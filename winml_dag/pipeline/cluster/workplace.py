"""How a worker executes an order: the same run as on its own machine, with its own store, and an answer.

The toolchain is checked again right before: an order with another toolchain is declined, never run with a different
one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from distributed import Reschedule, Semaphore

from winml_dag import TOOL_ID
from winml_dag.canonical import JsonObject
from winml_dag.engine import events
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LOG_FILE, LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import cache_key, key_inputs_of
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.progress import Watch
from winml_dag.engine.run import Damaged, Runner, RunOutcome
from winml_dag.engine.stage import Node
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.order import Answer, Order
from winml_dag.pipeline.cluster.report import Report, difference, folder_identity, toolchain_here
from winml_dag.pipeline.opened import store_with
from winml_dag.pipeline.remoteconfig import with_secrets_of_this_machine
from winml_dag.store.cache_folder import store_folder
from winml_dag.store.store import Store

# A display refreshes four times a second.
_SECONDS_BETWEEN_LOOKS = 0.5
# Limits for the log of a failure, and for each message while a stage runs.
_MOST_LOG_CHARACTERS = 1 << 20
_MOST_LIVE_BYTES = 1 << 16


@dataclass
class _Running:
    """An order in progress."""

    stopped: threading.Event = field(default_factory=threading.Event)
    runner: Runner | None = None

    def stop(self) -> None:
        self.stopped.set()
        if self.runner is not None:
            self.runner.stop()


class Workplace:
    """Executes orders, each in the caller's thread; *folder* contains its store. *report* returns the current report.

    Attributes:
        say: publishes a message under a topic; callable from any thread.
    """

    def __init__(self, folder: Path, report: Callable[[], Report]) -> None:
        self.folder = folder
        self.report = report
        self.say: Callable[[str, JsonObject], None] = lambda *_: None
        self._running: dict[str, _Running] = {}
        self._ended = threading.Condition()
        self._closed = False

    def perform(self, text: str, address: str = "") -> str:
        """The answer to the order *text*. Errors are part of the answer.

        Raises:
            Reschedule: when the order was stopped: another worker has to run it, if it is still wanted.
        """
        try:
            order = Order.from_text(text)
            with self._known(order.id) as running:
                answer = self._carry_out(order, running)
        except Interrupted:
            raise Reschedule from None
        except WinmlDagError as error:
            answer = Answer(ending="failed", error=error.message, advice=error.advice)
        except Exception as error:
            # An unexpected error must reach the build, and must not look like a lost worker.
            answer = Answer(ending="failed", error=f"Its worker met an unexpected error: {explanation(error)}.")
        return answer.model_copy(update={"address": address}).to_text()

    def stop(self, order_id: str) -> None:
        """Stop an order that is no longer wanted; does not wait."""
        running = self._running.get(order_id)
        if running is not None:
            threading.Thread(target=running.stop, daemon=True).start()

    def end(self, order_ids: Collection[str], most_seconds: float) -> bool:
        """Stop orders that are no longer wanted; returns whether all of them ended within *most_seconds*."""
        for order_id in order_ids:
            self.stop(order_id)
        with self._ended:
            return self._ended.wait_for(lambda: self._running.keys().isdisjoint(order_ids), most_seconds)

    def close(self) -> None:
        """End everything that runs, and start nothing more."""
        with self._ended:
            self._closed = True
            running = list(self._running.values())
        for each in running:
            each.stop()

    @contextmanager
    def _known(self, order_id: str) -> Iterator[_Running]:
        running = _Running()
        with self._ended:
            if self._closed:
                raise Interrupted("Stopped.")
            self._running[order_id] = running
        try:
            yield running
        finally:
            with self._ended:
                del self._running[order_id]
                self._ended.notify_all()

    def _carry_out(self, order: Order, running: _Running) -> Answer:
        told: list[str] = []
        with _devices(order.node.pools, running.stopped.is_set), self._store(order, told.append) as store:
            answer = self._run(order, store, running)
            return answer.model_copy(update={"in_remote": not self._has_store_of(order), "told": tuple(told)})

    def _run(self, order: Order, store: Store, running: _Running) -> Answer:
        place, toolchain = toolchain_here(order.node, store.fingerprints)
        if differs := difference(order.node.toolchain, toolchain):
            return Answer(ending="differs", error=differs, report=self.report().to_text())
        # Never use an interpreter from an order: this machine has its own for that environment.
        node = replace(order.node, interpreter=place.interpreter)
        key_inputs = key_inputs_of(node, {slot: artifact.digest for slot, artifact in order.inputs.items()})
        if cache_key(key_inputs) != order.key:
            raise StageError("Its worker makes another key of it.", advice="Install one winml_dag everywhere.")
        decision = Run(order.key, key_inputs, events.FIRST_BUILD, None)
        watch = Watch()
        with store.scratch.open() as scratch, ExitStack() as closing:
            runner = self._runner(node, store, scratch, order)
            closing.callback(runner.close)
            running.runner = runner
            if running.stopped.is_set():
                raise Interrupted("Stopped.")
            closing.enter_context(self._telling(order, watch))
            outcome = runner.run(node, decision, order.inputs, watch)
        if isinstance(outcome, Reuse) and not store.came_from_remote(order.key):
            # It was made for a build with another remote, or this one has lost it.
            store.offer(outcome.record)
        store.settle()
        return _answer(outcome)

    def _runner(self, node: Node, store: Store, scratch: Path, order: Order) -> Runner:
        return Runner(
            Graph((node,), {}, {}),
            store,
            LocalExecutor(),
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by=TOOL_ID,
            rebuild=order.rebuild,
            timeout_seconds=order.timeout_seconds,
        )

    def _has_store_of(self, order: Order) -> bool:
        return order.store == folder_identity(self.folder)

    @contextmanager
    def _store(self, order: Order, tell: Callable[[str], None]) -> Iterator[Store]:
        """The store for *order*. Opened per order, so that lookups that failed in a remote count for one order only."""
        if self._has_store_of(order):
            store = Store(store_folder(self.folder, order.function), function=order.function)
        else:
            store = store_with(self.folder, with_secrets_of_this_machine(order.remotes), tell)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def _telling(self, order: Order, watch: Watch) -> Iterator[None]:
        """Publish progress and new log lines during the block."""
        ended = threading.Event()

        def tell() -> None:
            seen, place = None, 0
            while not ended.wait(_SECONDS_BETWEEN_LOOKS):
                progress, (lines, place) = watch.read(), _log_from(watch.folder, place)
                if lines or progress != seen:
                    seen = progress
                    told = None if progress is None else progress.__dict__
                    self.say(order.topic, {"order": order.id, "progress": told, "log": lines})

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()


@contextmanager
def _devices(pools: Collection[str], gives_up: Callable[[], bool]) -> Iterator[None]:
    """Hold *pools*, devices of this machine: each runs one stage at a time, across all workers and builds."""
    with ExitStack() as held:
        for pool in sorted(pools):
            device = Semaphore(name=f"winml-dag/{socket.gethostname()}/{pool}")
            while not device.acquire(timeout=_SECONDS_BETWEEN_LOOKS):
                if gives_up():
                    raise Interrupted("Stopped.")
            held.callback(device.release)
        yield


def _log_from(folder: Path | None, place: int) -> tuple[str, int]:
    """The new part of the log in *folder* after *place*, and its end position. Only the end of a very large part."""
    if folder is None:
        return "", place
    with suppress(OSError), (folder / LOG_FILE).open("rb") as log:
        size = log.seek(0, 2)
        start = max(place, size - _MOST_LIVE_BYTES) if size >= place else 0
        log.seek(start)
        new = log.read(_MOST_LIVE_BYTES)
        return new.decode("utf-8", "replace"), start + len(new)
    return "", place


def _answer(outcome: RunOutcome) -> Answer:
    if isinstance(outcome, Damaged):
        return Answer(ending="damaged", file=outcome.file)
    if isinstance(outcome, Reuse):
        return Answer(ending="found", record=outcome.record)
    failed = outcome.status is Status.FAILED
    return Answer(
        ending="failed" if failed else "done",
        record=outcome.record,
        error=outcome.error,
        advice=outcome.advice,
        elapsed_seconds=outcome.elapsed_seconds or 0.0,
        tail=outcome.tail,
        metrics=dict(outcome.metrics),
        progress=outcome.progress,
        log=_whole_log(outcome) if failed else "",
    )


def _whole_log(outcome: StageResult) -> str:
    if outcome.log is None:
        return ""
    try:
        text = outcome.log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text if len(text) <= _MOST_LOG_CHARACTERS else text[-_MOST_LOG_CHARACTERS:]
