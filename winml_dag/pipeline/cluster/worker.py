"""A worker: dask delivers orders and collects answers, and each order runs as a local stage would.

dask limits the number of concurrent orders, and their total memory, over all builds that use the worker. It cannot end
threads, so a plug-in is notified when a task is no longer wanted, and ends its process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.diagnostics.plugin import WorkerPlugin

from winml_dag.errors import ENDING_SIGNALS, StageError, UsageError
from winml_dag.pipeline.cluster.report import Report
from winml_dag.pipeline.cluster.workplace import Workplace

# The name of the plug-in, and of the report in a worker's dask information.
NAME = "winml_dag"
# Prefix of task keys, followed by the id of the order. With one prefix for all stages, dask assumes equal durations,
# and so assigns the next task to the worker with the smallest share of used slots.
PREFIX = "winml-dag-"
# The dask resource that counts memory.
MEMORY = "winml_dag_memory"
# By default a dask worker would look for its scheduler forever.
CONNECT_SECONDS = 10

# States of a task whose work is wanted.
_WANTED = frozenset({"executing", "long-running", "ready", "constrained", "waiting", "rescheduled", "memory", "error"})


def perform(text: str) -> str:
    """The answer to the order *text*; dask runs this in a thread of a worker."""
    worker = get_worker()
    return _workplace(worker).perform(text, worker.address)


async def ended(orders: list[str], most_seconds: float, dask_worker: Any) -> bool:
    """End *orders* and wait until they have ended, with a time limit; dask runs this in a worker."""
    return await asyncio.to_thread(_workplace(dask_worker).end, orders, most_seconds)


def _workplace(worker: Any) -> Workplace:
    plugin = worker.plugins[NAME]
    assert isinstance(plugin, _Plugin)
    return plugin.workplace


class _Plugin(WorkerPlugin):  # type: ignore[misc]
    name = NAME

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace

    def transition(self, key: Any, start: str, finish: str, **_: object) -> None:
        if start in ("executing", "long-running") and finish not in _WANTED:
            self.workplace.stop(str(key).removeprefix(PREFIX))

    async def teardown(self, worker: Any) -> None:  # noqa: ARG002 - the signature is dask's
        # Before the scheduler learns that the worker has left: nothing runs here any more when another one gets the
        # work.
        await asyncio.to_thread(self.workplace.close)


def serve(
    address: str, folder: Path, report: Callable[[], Report], name: str | None, began: Callable[[str, Report], None]
) -> None:
    """Work for the scheduler at *address*, with the store in *folder*, until the scheduler or a signal ends it.

    *report* returns the current report; *began* is called with the address of the worker and its report.

    Raises:
        UsageError: when there is no scheduler.
        StageError: when the scheduler has gone.
        KeyboardInterrupt: after all running stages have been killed.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
    check_address(address)
    workplace = Workplace(folder, report)
    try:
        asyncio.run(_serve(address, workplace, name, began))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _serve(address: str, workplace: Workplace, name: str | None, began: Callable[[str, Report], None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(task.cancel))
    report = workplace.report()
    with tempfile.TemporaryDirectory(prefix="winml-dag-worker-", ignore_cleanup_errors=True) as folder:
        worker = dask_worker(address, workplace, report, name=name, local_directory=folder)
        starting = asyncio.ensure_future(worker.start())
        # Do not await it directly: dask blocks cancellation while it looks for the scheduler.
        await asyncio.wait([starting])
        try:
            await starting
        except OSError:
            raise no_scheduler(address, f"it cannot be reached within {CONNECT_SECONDS} s") from None
        async with worker:
            began(worker.address, report)
            await worker.finished()
    raise StageError(f"The scheduler at {address} has gone, or has sent this worker away.")


def dask_worker(address: str, workplace: Workplace, report: Report, **options: Any) -> Any:
    """A dask worker, not started, that executes orders in *workplace*."""
    text = report.to_text()
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
    workplace.say = worker.log_event
    return worker


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
