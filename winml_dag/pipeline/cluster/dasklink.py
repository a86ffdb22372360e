"""The way from a build to its workers, by dask: which there are, orders to them and answers, what they tell meanwhile.

A task is for one worker, which the fleet has chosen. That a worker has gone is told by the scheduler's own events, so
nothing waits for a machine that is no more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from distributed import Client, Future

from winml_dag.engine.cluster.order import Answer, Order
from winml_dag.engine.progress import Progress, Watch
from winml_dag.errors import Interrupted, StageError
from winml_dag.explanation import explanation
from winml_dag.pipeline.cluster.service import (
    CONNECT_SECONDS,
    NAME,
    PREFIX,
    check_address,
    no_scheduler,
    perform,
    told_by,
)

# How long workers may take to end what runs, in seconds; a process group is killed, so nothing asks for more.
_ENDING_SECONDS = 10.0


@dataclass(eq=False)
class _Call:
    """An order that is underway. What comes first counts: an answer, or that there will be none."""

    address: str
    watch: Watch
    log: Path
    heard: SimpleQueue[str] = field(default_factory=SimpleQueue)


class DaskLink:
    """See ``Link``. *changed* is called when a worker has come or gone or says something else of itself, from another
    thread.
    """

    def __init__(self, client: Any, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._changed: Callable[[], None] = lambda: None
        self._calls: dict[str, _Call] = {}
        self._reports: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopped = False
        # How many workers have gone so far.
        self._gone = 0
        client.subscribe_topic("all", self._hear_of_workers)
        client.subscribe_topic(topic, self._hear_of_order)
        self._look()

    def follow(self, changed: Callable[[], None]) -> None:
        """From now on, call *changed*."""
        self._changed = changed

    def reports(self) -> dict[str, str]:
        """What each worker of ours says of itself, by its address."""
        with self._lock:
            return dict(self._reports)

    def perform(self, address: str, order: Order, watch: Watch, log: Path) -> Answer | None:
        call = _Call(address, watch, log)
        with self._lock:
            if self._stopped:
                raise Interrupted("Stopped.")
            if address not in self._reports:
                return None
            self._calls[order.id] = call
        future = self._client.submit(
            perform,
            order.to_text(),
            key=PREFIX + order.id,
            workers=[address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )
        try:
            future.add_done_callback(lambda _: call.heard.put("done"))
            heard = call.heard.get()
            if heard == "stopped":
                raise Interrupted("Stopped.")
            return self._answer(address, future) if heard == "done" else None
        finally:
            with self._lock:
                del self._calls[order.id]
            with suppress(Exception):  # a connection that is gone lets go of everything by itself
                future.release()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            calls = dict(self._calls)
        for call in calls.values():
            call.heard.put("stopped")
        if calls:
            # A worker that does not answer must not keep us: what it runs ends when the scheduler misses us.
            ending = threading.Thread(target=self._end, args=(calls,), daemon=True)
            ending.start()
            ending.join(_ENDING_SECONDS)

    def _answer(self, address: str, future: Future) -> Answer | None:
        if future.status == "cancelled":
            if self._client.status != "running":
                raise StageError(
                    "The scheduler has gone.", advice="Start it again, and build again: what had finished is kept."
                )
            return None
        if future.status != "finished":
            error = future.exception()
            if type(error).__name__ == "KilledWorker":
                return None
            raise StageError(f"{address} could not take an order: {explanation(error)}.")
        answer = Answer.from_text(future.result())
        if answer.ending == "differs":
            with self._lock:
                self._reports[address] = answer.report
            self._changed()
        return answer

    def _end(self, calls: Mapping[str, _Call]) -> None:
        """Have workers end what they do for *calls*, and wait until they have."""
        keys = [PREFIX + order_id for order_id in calls]
        with suppress(Exception):  # without a scheduler, workers end all by themselves
            self._client.cancel([Future(key, self._client) for key in keys], force=True)
            addresses = sorted({call.address for call in calls.values()})
            self._client.run(ended, list(calls), workers=addresses, on_error="ignore")

    def _hear_of_workers(self, event: tuple[float, Any]) -> None:
        message = event[1]
        action = message.get("action") if isinstance(message, dict) else None
        if action == "remove-worker":
            self._forget(str(message.get("worker")))
        elif action == "add-worker":
            # Not in the thread that hears: it would wait for an answer that comes through itself.
            threading.Thread(target=self._look_again, daemon=True).start()

    def _forget(self, address: str) -> None:
        with self._lock:
            self._gone += 1
            self._reports.pop(address, None)
            lost = [call for call in self._calls.values() if call.address == address]
        self._changed()
        for call in lost:
            call.heard.put("lost")

    def _look_again(self) -> None:
        with suppress(Exception):  # the connection has gone, which others notice
            self._look()
            self._changed()

    def _look(self) -> None:
        while True:
            gone = self._gone
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
            told = {address: worker[NAME] for address, worker in workers.items() if isinstance(worker.get(NAME), str)}
            with self._lock:
                # What was told before one went would have it here for ever.
                if gone == self._gone:
                    self._reports = {address: self._reports.get(address, text) for address, text in told.items()}
                    return

    def _hear_of_order(self, event: tuple[float, Any]) -> None:
        message = told_by(event[1])
        with self._lock:
            call = self._calls.get(str(message.get("order", "")))
        if call is None:
            return
        with suppress(TypeError, OSError):
            progress = message["progress"]
            if isinstance(progress, dict):
                call.watch.tell(Progress(**progress))
            if lines := message["log"]:
                with call.log.open("a", encoding="utf-8") as log:
                    log.write(str(lines))


async def ended(orders: list[str], dask_worker: Any) -> bool:
    """Run by dask in a worker: end *orders*, and wait until they have ended, but not for ever."""
    return bool(await asyncio.to_thread(dask_worker.plugins[NAME].workplace.end, orders, _ENDING_SECONDS))


def silence() -> None:
    """Let dask say nothing: what there is to say, we do."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)


def connect(address: str, security: Any = None) -> Any:
    """A client of the scheduler at *address*.

    Raises:
        UsageError: when there is none.
    """
    silence()
    # A client of what is no address waits 20 s for its own end.
    check_address(address)
    try:
        return Client(address, security=security, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise no_scheduler(address, explanation(error)) from error
