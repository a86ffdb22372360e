"""What a worker does with an order: the run that its own machine would do, with its own store, and an answer.

The machine is looked at once more right before: an order for another toolchain is refused, never carried out with what
there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine import reason
from winml_dag.engine.admission import Capacity, Need
from winml_dag.engine.cluster.doorman import Doorman
from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.decide import Reuse, Run
from winml_dag.engine.events import StageResult, Status
from winml_dag.engine.execute import LOG_FILE, LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import cache_key, ingredients_of
from winml_dag.engine.progress import Progress, Watch
from winml_dag.engine.run import Damaged, Displaced, Runner, RunOutcome
from winml_dag.errors import Interrupted, StageError, WinmlDagError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.remotes import remotes_of
from winml_dag.pipeline.cluster.report import Offer, difference, report_here, toolchain_here
from winml_dag.pipeline.madeby import MADE_BY
from winml_dag.store.local import LocalStore

if TYPE_CHECKING:
    from winml_dag.store.digest import DigestFunction

# Somebody looks at a display that is drawn four times a second.
_SECONDS_BETWEEN_LOOKS = 0.5
# Of the log of a failure; of what is told while a stage runs.
_MOST_LOG_CHARACTERS = 1 << 20
_MOST_LIVE_BYTES = 1 << 16

# Takes a message for who has ordered, under a topic; from any thread.
Say = Callable[[str, JsonObject], None]


@dataclass
class _Running:
    """An order that is being carried out."""

    stopped: threading.Event = field(default_factory=threading.Event)
    runner: Runner | None = None

    def stop(self) -> None:
        self.stopped.set()
        if self.runner is not None:
            self.runner.stop()


class Workplace:
    """Carries out orders, several at a time; *folder* is that of its store."""

    def __init__(self, folder: Path, offer: Offer, say: Say) -> None:
        self.folder = folder
        self._offer = offer
        self._say = say
        self._doorman = Doorman(Capacity(offer.places, offer.memory_bytes))
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._closed = False

    def report(self) -> str:
        """What there is now."""
        return report_here(self._offer, self.folder)

    def perform(self, text: str) -> str:
        """The answer to the order *text*. Whatever goes wrong is in the answer."""
        try:
            order = Order.from_text(text)
        except StageError as error:
            return Answer("failed", error=error.message, advice=error.advice).to_text()
        with self._known(order.id) as running:
            try:
                answer = self._carry_out(order, running)
            except Interrupted:
                answer = Answer("stopped")
            except WinmlDagError as error:
                answer = Answer("failed", error=error.message, advice=error.advice)
            except Exception as error:
                # What we did not foresee must reach who has ordered, and not look like a lost worker.
                answer = Answer(
                    "failed", error=f"Its worker met an error that it does not expect: {explanation(error)}."
                )
            return answer.to_text()

    def stop(self, order_id: str) -> None:
        """Nobody wants that order any more; does not wait."""
        with self._lock:
            running = self._running.get(order_id)
        if running is not None:
            threading.Thread(target=running.stop, daemon=True).start()

    def end(self, order_ids: Collection[str], most_seconds: float) -> bool:
        """Nobody wants these any more: wait until none of them is carried out, and say whether that is so."""
        for order_id in order_ids:
            self.stop(order_id)
        with self._ended:
            return self._ended.wait_for(lambda: self._running.keys().isdisjoint(order_ids), most_seconds)

    def close(self) -> None:
        """End all that runs, and begin no more."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for each in running:
            each.stop()

    @contextmanager
    def _known(self, order_id: str) -> Iterator[_Running]:
        running = _Running()
        with self._lock:
            self._running[order_id] = running
            if self._closed:
                running.stopped.set()
        try:
            yield running
        finally:
            with self._ended:
                del self._running[order_id]
                self._ended.notify_all()

    def _carry_out(self, order: Order, running: _Running) -> Answer:
        need = Need(order.memory_bytes, order.node.pools)
        told: list[str] = []
        with self._doorman.enter(need, running.stopped.is_set), self._store(order, told.append) as store:
            place, toolchain = toolchain_here(order.node, store.fingerprints)
            if differs := difference(order.node.toolchain, toolchain):
                return Answer("differs", error=differs, report=self.report())
            # Never the interpreter that an order may name: this machine has its own for that environment.
            order = replace(order, node=replace(order.node, interpreter=place.interpreter))
            digests = {slot: artifact.digest for slot, artifact in order.inputs.items()}
            ingredients = ingredients_of(order.node, digests)
            if cache_key(ingredients) != order.key:
                raise StageError("Its worker makes another key of it.", advice="Install one winml_dag everywhere.")
            decision = Run(order.key, ingredients, reason.FIRST_BUILD, None)
            with store.scratch.open() as scratch:
                outcome = self._run(order, decision, store, scratch, running)
            if isinstance(outcome, Reuse) and not store.came_from_behind(order.key):
                # It was made for a build with another remote, or this one has lost it.
                store.offer(outcome.record)
            store.settle()
            return replace(_answer(outcome), told=tuple(told))

    def _run(self, order: Order, decision: Run, store: LocalStore, scratch: Path, running: _Running) -> RunOutcome:
        node = order.node
        runner = Runner(
            Graph((node,), {}, {}),
            store,
            LocalExecutor(),
            store.fingerprints,
            scratch=scratch,
            failures=store.failures,
            made_by=MADE_BY,
            rebuild=order.rebuild,
            timeout_seconds=order.timeout_seconds,
        )
        running.runner = runner
        if running.stopped.is_set():
            raise Interrupted("Stopped.")
        watch = FollowedWatch()
        try:
            with self._telling(order, watch):
                return runner.run(node, decision, order.inputs, watch)
        finally:
            runner.close()

    @contextmanager
    def _store(self, order: Order, tell: Callable[[str], None]) -> Iterator[LocalStore]:
        """Opened for each order: what a remote did not have, or did not answer, counts for one only."""
        if order.remotes is None:
            function: DigestFunction = "sha256" if order.function == "sha256" else "xxh3-128"
            store = LocalStore(self.folder, function=function)
        else:
            from winml_dag.pipeline.opened import store_with

            store = store_with(self.folder, remotes_of(order.remotes), tell)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def _telling(self, order: Order, watch: FollowedWatch) -> Iterator[None]:
        """Tell who has ordered how far it is, and what its log says, for the block."""
        ended = threading.Event()

        def tell() -> None:
            seen, place = None, 0
            while not ended.wait(_SECONDS_BETWEEN_LOOKS):
                progress, (lines, place) = watch.read(), _log_from(watch.folder, place)
                if lines or progress != seen:
                    seen = progress
                    self._say(order.topic, _message(order, progress, lines))

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()


class FollowedWatch(Watch):
    """Knows the folder of the job that it follows."""

    folder: Path | None = None

    def follow(self, folder: Path) -> None:
        self.folder = folder
        super().follow(folder)


def _message(order: Order, progress: Progress | None, lines: str) -> JsonObject:
    return {"order": order.id, "progress": None if progress is None else progress.__dict__, "log": lines}


def _log_from(folder: Path | None, place: int) -> tuple[str, int]:
    """What the log in *folder* has from *place* on, and where that ends. Of a flood, the end."""
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
        return Answer("damaged", file=outcome.file, error=f"{outcome.file.name} cannot be had.")
    if isinstance(outcome, Reuse):
        return Answer("found", record=outcome.record)
    assert not isinstance(outcome, Displaced)
    if outcome.status is not Status.FAILED:
        return Answer("done", record=outcome.record, progress=outcome.progress)
    return Answer(
        "failed",
        error=outcome.error,
        advice=outcome.advice,
        elapsed_seconds=outcome.elapsed_seconds or 0.0,
        tail=outcome.tail,
        metrics=outcome.metrics,
        progress=outcome.progress,
        log=_whole_log(outcome),
    )


def _whole_log(outcome: StageResult) -> str:
    if outcome.log is None:
        return ""
    try:
        text = outcome.log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text if len(text) <= _MOST_LOG_CHARACTERS else text[-_MOST_LOG_CHARACTERS:]
