"""A worker: dask delivers stages, and each runs as in a build on this machine, with this machine's store.

dask limits how many stages run at a time and their total memory, over all builds that use the worker. It cannot end
threads, so a plug-in hears that a task was released, and ends its process. dask pickles what it sends: anyone who
reaches its scheduler can run anything on its workers.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Reschedule, Semaphore, Worker, get_worker
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.diagnostics.plugin import WorkerPlugin

from winml_dag import TOOL_ID
from winml_dag.canonical import JsonObject
from winml_dag.engine import events
from winml_dag.engine.events import StageResult
from winml_dag.engine.exchange import Watch
from winml_dag.engine.execute import LocalExecutor
from winml_dag.engine.graph import Graph
from winml_dag.engine.plan import Reuse, Run
from winml_dag.engine.run import Runner, RunOutcome
from winml_dag.engine.stage import Node, key_inputs_of
from winml_dag.errors import ENDING_SIGNALS, Interrupted, StageError, UsageError
from winml_dag.pipeline.cluster.report import Report, difference, folder_identity, toolchain_here
from winml_dag.pipeline.remoteconfig import with_secrets_of_this_machine
from winml_dag.pipeline.remotes import store_with
from winml_dag.store.artifact import Artifact
from winml_dag.store.cache_folder import store_folder
from winml_dag.store.digest import DigestFunction
from winml_dag.store.records import cache_key
from winml_dag.store.remote.settings import TierSettings
from winml_dag.store.store import Store

# The name of the plug-in, and of the report in a worker's dask information.
NAME = "winml_dag"
# Prefix of task keys. With one prefix for all stages, dask assumes equal durations, and so assigns the next task to the
# worker with the smallest share of used slots.
PREFIX = "winml-dag-"
# The dask resource that counts memory.
MEMORY = "winml_dag_memory"
# By default a dask worker would look for its scheduler forever.
CONNECT_SECONDS = 10
# A display refreshes four times a second.
_SECONDS_BETWEEN_LOOKS = 0.5
# The limit for the log of a failure.
_MOST_LOG_CHARACTERS = 1 << 20

# States of a task whose work is wanted.
_WANTED = frozenset({"executing", "long-running", "ready", "constrained", "waiting", "rescheduled", "memory", "error"})


@dataclass(frozen=True)
class Order:
    """One stage to run. It contains no files: inputs and outputs are in a store and are identified by their digests.

    Attributes:
        topic: the topic of dask events under which progress is published.
        inputs: artifacts by slot.
        key: of the result.
        rebuild: whether to run even if the result exists.
        store: identity of the store that the build uses, and *function* its digest function.
        remotes: of the build, the nearest first and without passwords; for workers with another store.
    """

    topic: str
    node: Node
    inputs: dict[str, Artifact]
    key: str
    timeout_seconds: float
    rebuild: bool
    store: str
    function: DigestFunction
    remotes: tuple[TierSettings, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The *outcome* of an order.

    Attributes:
        address: of the worker.
        in_remote: whether its outputs are in the remote of the build.
        log: of a failure.
        warnings: of its store, such as an unreachable remote.
    """

    address: str
    outcome: RunOutcome
    in_remote: bool = False
    log: str = ""
    warnings: tuple[str, ...] = ()


@dataclass
class _Running:
    """An order in progress."""

    stopped: threading.Event = field(default_factory=threading.Event)
    runner: Runner | None = None

    def stop(self) -> None:
        self.stopped.set()
        if self.runner is not None:
            self.runner.stop()

    def check(self) -> None:
        if self.stopped.is_set():
            raise Interrupted("Stopped.")


class Workplace:
    """Executes orders, each in the caller's thread; *folder* contains its store.

    Attributes:
        publish: publishes a message under a topic; callable from any thread.
        leave: ends the worker; callable from any thread.
        outdated: how its packages differ from those that it reported, if it left because of that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.publish: Callable[[str, JsonObject], None] = lambda *_: None
        self.leave: Callable[[], None] = lambda: None
        self.outdated = ""
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()
        self._closed = False

    def perform(self, key: str, order: Order, address: str = "") -> Answer:
        """The answer to *order*, which is the task *key*.

        Raises:
            Reschedule: when the task was stopped, or packages have changed here: another worker has to run it, if it is
            still wanted.
            WinmlDagError: when it cannot be run here.
        """
        running = _Running()
        with self._lock:
            if self._closed:
                raise Reschedule
            self._running[key] = running
        warnings: list[str] = []
        try:
            with _devices(order.node.pools, running), self._store(order, warnings.append) as store:
                outcome = self._run(key, order, store, running)
                in_remote = order.store != folder_identity(self.folder)
                return Answer(address, outcome, in_remote, _log_of(outcome), tuple(warnings))
        except Interrupted:
            raise Reschedule from None
        finally:
            with self._lock:
                del self._running[key]

    def stop(self, key: str) -> None:
        """Stop a task that is no longer wanted; does not wait."""
        if (running := self._running.get(key)) is not None:
            threading.Thread(target=running.stop, daemon=True).start()

    def close(self) -> None:
        """End everything that runs, and start nothing more."""
        with self._lock:
            self._closed = True
            running = list(self._running.values())
        for each in running:
            each.stop()

    def _run(self, key: str, order: Order, store: Store, running: _Running) -> RunOutcome:
        place, toolchain = toolchain_here(order.node, store.fingerprints)
        # Its packages may have changed since it reported them: never run with others than those in the key.
        if differs := difference(order.node.toolchain, toolchain):
            self.outdated = differs
            self.leave()
            raise Reschedule
        # Never use an interpreter from an order: this machine has its own for that environment.
        node = replace(order.node, interpreter=place.interpreter)
        key_inputs = key_inputs_of(node, {slot: artifact.digest for slot, artifact in order.inputs.items()})
        if cache_key(key_inputs) != order.key:
            raise StageError("Its worker makes another key of it.", advice="Install one winml_dag everywhere.")
        watch = Watch()
        with store.scratch.open() as scratch, ExitStack() as closing:
            running.runner = runner = Runner(
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
            closing.callback(runner.close)
            running.check()
            closing.enter_context(self._publishing(order.topic, key, watch))
            outcome = runner.run(node, Run(order.key, key_inputs, events.FIRST_BUILD, None), order.inputs, watch)
        running.check()
        if isinstance(outcome, Reuse) and not store.came_from_remote(order.key):
            # It was made for a build with another remote, or this one has lost it.
            store.offer(outcome.record)
        store.settle()
        return outcome

    @contextmanager
    def _store(self, order: Order, warn: Callable[[str], None]) -> Iterator[Store]:
        """The store for *order*. Opened per order, so that lookups that failed in a remote count for one order only."""
        if order.store == folder_identity(self.folder):
            store = Store(store_folder(self.folder, order.function), function=order.function)
        else:
            store = store_with(self.folder, with_secrets_of_this_machine(order.remotes), warn)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def _publishing(self, topic: str, key: str, watch: Watch) -> Iterator[None]:
        """Publish progress during the block."""
        ended = threading.Event()

        def publish() -> None:
            published = None
            while not ended.wait(_SECONDS_BETWEEN_LOOKS):
                if (progress := watch.read()) not in (None, published):
                    published = progress
                    self.publish(topic, {"key": key, "progress": progress.__dict__})

        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        try:
            yield
        finally:
            ended.set()
            publisher.join()


@contextmanager
def _devices(pools: Collection[str], running: _Running) -> Iterator[None]:
    """Hold *pools*, devices of this machine: each runs one stage at a time, across all workers and builds."""
    with ExitStack() as held:
        for pool in sorted(pools):
            device = Semaphore(name=f"winml-dag/{socket.gethostname()}/{pool}")
            while not device.acquire(timeout=_SECONDS_BETWEEN_LOOKS):
                running.check()
            held.callback(device.release)
        yield


def _log_of(outcome: RunOutcome) -> str:
    """The log of a failure, which is in the worker's store."""
    if not isinstance(outcome, StageResult) or outcome.log is None:
        return ""
    try:
        return outcome.log.read_text(encoding="utf-8", errors="replace")[-_MOST_LOG_CHARACTERS:]
    except OSError:
        return ""


def perform(order: bytes) -> Answer:
    """The answer to a pickled :class:`Order`; dask runs this in a thread of a worker.

    dask unpickles arguments in its scheduler too, which may have another version of winml_dag.
    """
    worker = get_worker()
    plugin = worker.plugins[NAME]
    assert isinstance(plugin, _Plugin)
    return plugin.workplace.perform(str(worker.get_current_task()), pickle.loads(order), worker.address)


class _Plugin(WorkerPlugin):  # type: ignore[misc]
    name = NAME

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace

    def transition(self, key: Any, start: str, finish: str, **_: object) -> None:
        if start in ("executing", "long-running") and finish not in _WANTED:
            self.workplace.stop(str(key))

    async def teardown(self, worker: Any) -> None:  # noqa: ARG002 - the signature is dask's
        # Before the scheduler learns that the worker has left: nothing runs here any more when another one gets the
        # work.
        await asyncio.to_thread(self.workplace.close)


def serve(address: str, folder: Path, report: Report, name: str | None, began: Callable[[str], None]) -> None:
    """Work for the scheduler at *address*, with the store in *folder*, until the scheduler or a signal ends it.

    *began* is called with the address of the worker.

    Raises:
        UsageError: when there is no scheduler.
        StageError: when the scheduler has gone.
        KeyboardInterrupt: after all running stages have been killed.
    """
    silence()
    check_address(address)
    try:
        asyncio.run(_serve(address, folder, report, name, began))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _serve(address: str, folder: Path, report: Report, name: str | None, began: Callable[[str], None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
    with tempfile.TemporaryDirectory(prefix="winml-dag-worker-", ignore_cleanup_errors=True) as local:
        workplace = Workplace(folder)
        worker = dask_worker(address, workplace, report, name=name, local_directory=local)
        starting = asyncio.ensure_future(worker.start())
        # Do not await it directly: dask blocks cancellation while it looks for the scheduler.
        await asyncio.wait([starting])
        try:
            await starting
        except OSError:
            raise no_scheduler(address, f"it cannot be reached within {CONNECT_SECONDS} s") from None
        async with worker:
            began(worker.address)
            await worker.finished()
    if workplace.outdated:
        raise StageError(f"Packages have changed here: a worker {workplace.outdated}.", advice="Start it again.")
    raise StageError(f"The scheduler at {address} has gone, or has sent this worker away.")


def dask_worker(address: str, workplace: Workplace, report: Report, **options: Any) -> Any:
    """A dask worker, not started, that executes orders in *workplace*."""
    text = report.model_dump_json()
    worker = Worker(
        address,
        nthreads=report.places,
        resources={MEMORY: report.memory_bytes},
        memory_limit=0,  # stages have their own processes, which dask does not see
        dashboard=False,
        death_timeout=CONNECT_SECONDS,
        plugins=(_Plugin(workplace),),
        startup_information={NAME: lambda _: text},
        **options,
    )
    workplace.publish = worker.log_event
    workplace.leave = partial(worker.loop.add_callback, worker.close)
    return worker


def silence() -> None:
    """Silence dask's logging: this program reports what matters."""
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)


def check_address(address: str) -> None:
    """Raises UsageError for an invalid address of a scheduler."""
    try:
        scheme, place = parse_address(address)
        if scheme in ("tcp", "tls"):
            parse_host_port(place)
    except ValueError as error:
        raise no_scheduler(address, str(error)) from None


def no_scheduler(address: str, why: str) -> UsageError:
    return UsageError(
        f"There is no scheduler at {address}: {why}.",
        advice="Start one with: dask scheduler; its log says its address.",
    )
