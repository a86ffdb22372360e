"""The process of a worker: dask brings orders and takes answers, and a workplace carries them out.

Of dask there is as little as can be: no worker of it is ever asked to run anything but :func:`perform`, with one text.
A task that nobody wants any more is told by dask's plug-in, since dask itself ends no thread.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Worker, get_worker
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.security import Security

from winml_dag.canonical import JsonObject
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.cluster.report import Offer
from winml_dag.pipeline.cluster.workplace import Workplace

# Under this name a worker's information has our report, and it has our plug-in.
NAME = "winml_dag"
# A key of dask's for an order.
PREFIX = "winml-dag-"
# So long a scheduler is looked for; a worker of dask's own would do it for ever.
CONNECT_SECONDS = 10
# States of a task in which its work is wanted.
_WANTED = frozenset({"executing", "long-running", "ready", "constrained", "waiting", "rescheduled", "memory", "error"})


def perform(text: str) -> str:
    """What dask runs in a thread of a worker: the answer to the order *text*."""
    plugin = get_worker().plugins[NAME]
    assert isinstance(plugin, _Plugin)
    return plugin.workplace.perform(text)


class _Plugin(WorkerPlugin):  # type: ignore[misc]
    name = NAME

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace

    def transition(self, key: Any, start: str, finish: str, **_: object) -> None:
        if start in ("executing", "long-running") and finish not in _WANTED:
            self.workplace.stop(str(key).removeprefix(PREFIX))


@dataclass(frozen=True)
class Service:
    """A worker to be: for the scheduler at *address*, with the store in *folder*. *tls*: certificates and keys as dask
    has them; None: as dask is configured.
    """

    address: str
    folder: Path
    offer: Offer
    name: str | None = None
    tls: Mapping[str, str] | None = None

    def run(self, began: Callable[[str, str], None], until: Callable[[], None] | None = None) -> None:
        """Work until the scheduler goes, or an interrupt. *began* is given the address and the report. *until* returns
        when it is to end.

        Raises:
            UsageError: when there is no scheduler.
            StageError: when there is no scheduler any more.
            KeyboardInterrupt: after all that ran has been ended.
        """
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
        asyncio.run(self._run(began, until))

    async def _run(self, began: Callable[[str, str], None], until: Callable[[], None] | None) -> None:
        place = Workplace(self.folder, self.offer, lambda topic, message: worker.log_event(topic, message))
        text = place.report()
        check_address(self.address)
        interrupted = _interrupts(until)
        with tempfile.TemporaryDirectory(prefix="winml-dag-worker-", ignore_cleanup_errors=True) as folder:
            worker = Worker(
                self.address,
                nthreads=self.offer.places,
                name=self.name,
                local_directory=folder,
                memory_limit=0,  # stages have processes of their own, which the workplace counts
                dashboard=False,
                death_timeout=CONNECT_SECONDS,
                plugins=(_Plugin(place),),
                startup_information={NAME: lambda _: text},
                security=None if self.tls is None else security_of(self.tls),
            )
            try:
                await self._connect(worker, interrupted)
                async with worker:
                    began(worker.address, text)
                    ended = asyncio.ensure_future(worker.finished())
                    await asyncio.wait([ended, interrupted], return_when=asyncio.FIRST_COMPLETED)
                    # Before the scheduler hears of our end: nothing of ours runs any more when others get the work.
                    await asyncio.to_thread(place.close)
            finally:
                place.close()
        if interrupted.done():
            raise KeyboardInterrupt
        raise StageError(f"The scheduler at {self.address} has gone, or has sent this worker away.")

    async def _connect(self, worker: Worker, interrupted: asyncio.Future[None]) -> None:
        """Have *worker* reach its scheduler, which dask does not let anybody interrupt."""
        starting = asyncio.ensure_future(worker.start())
        await asyncio.wait([starting, interrupted], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            raise KeyboardInterrupt
        try:
            await starting
        except OSError:
            raise no_scheduler(self.address, f"it cannot be reached within {CONNECT_SECONDS} s") from None


def _interrupts(until: Callable[[], None] | None) -> asyncio.Future[None]:
    """Done at Ctrl-C, when the system ends us, and when *until* returns. Where a loop hears no signals, these break it
    off.
    """
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not interrupted.done():
            interrupted.set_result(None)

    with suppress(NotImplementedError):
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, note)
    if until is not None:
        wait: Callable[[], None] = until

        def hear() -> None:
            wait()
            with suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(note)

        threading.Thread(target=hear, daemon=True).start()
    return interrupted


def check_address(address: str) -> None:
    """Raises UsageError for what cannot be the address of a scheduler."""
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


def security_of(tls: Mapping[str, str]) -> Security:
    return Security(require_encryption=True, **tls)


def told_by(message: Any) -> JsonObject:
    """A message of a workplace, as dask gives it back; empty for anything else."""
    return message if isinstance(message, dict) and isinstance(message.get("order"), str) else {}
