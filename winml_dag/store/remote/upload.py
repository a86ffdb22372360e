"""Uploads in the background: blobs first, and a record once all of its blobs exist in the remote.

So whenever a process is killed, no uploaded record lacks its blobs. Nothing is overwritten: an existing record of the
same key stays.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.records import Record
from winml_dag.store.remote.transfer import POLL_SECONDS, RemoteUnavailable, ThreadPool, Transfer

if TYPE_CHECKING:
    from winml_dag.store.remote.tier import RemoteTier

# Each reads its file in small pieces, so this bounds memory as well. A record waits in a thread for its blobs, whose
# uploads have all started before: the pool is a queue.
UPLOADS_AT_ONCE = 8


class Uploader:
    """Thread-safe."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        # One for each tier: the threads of one that hangs are lost.
        self._pools: defaultdict[RemoteTier, ThreadPool] = defaultdict(partial(ThreadPool, UPLOADS_AT_ONCE))
        # Reentrant: where the system has no more threads, the caller does the work itself.
        self._lock = threading.RLock()
        # Whether each blob exists there, by tier and digest.
        self._known: dict[tuple[RemoteTier, str], Future[bool]] = {}
        self._underway: dict[Future[bool], tuple[RemoteTier, Transfer]] = {}
        self._gone = self._all = 0

    def record(self, tier: RemoteTier, record: Record, *, with_blobs: bool = True) -> None:
        """Start to upload *record*, after its blobs, which are local."""
        files = {file.digest: file for file in record.files()} if with_blobs else {}
        # The log of a fetched record is not local, and the record is as good without.
        if with_blobs and record.log is not None and not self._blobs.missing([record.log]):
            files[record.log.digest] = record.log
        blobs = [self.blob(tier, file) for file in files.values()]
        self._start(tier, lambda transfer: all(blob.result() for blob in blobs) and tier.put_record(record, transfer))

    def blob(self, tier: RemoteTier, file: FileEntry) -> Future[bool]:
        """Start to upload the local blob of *file*; the result is whether the remote has it then."""
        with self._lock:
            known = self._known.get((tier, file.digest))
            if known is None or (known.done() and not known.result()):
                known = self._start(tier, partial(self._put_blob, tier, file))
                self._known[tier, file.digest] = known
            return known

    def settle(self, on_progress: Callable[[int, int], None] | None) -> None:
        """Wait until nothing is under way. *on_progress* gets the bytes sent and the bytes to send in all."""
        shown: tuple[int, int] | None = None
        while True:
            with self._lock:
                underway, now = dict(self._underway), (self._gone, self._all)
            if on_progress is not None and now != shown:
                on_progress(*now)
                shown = now
            if not underway:
                return
            wait(underway, POLL_SECONDS)
            for future, (tier, transfer) in underway.items():
                # All threads may hang, and then nothing else begins.
                if transfer.abandon_if_hung() or (tier.writing.is_open and transfer.breaker is None):
                    _abandon(future)

    def close(self) -> None:
        """Give up what is under way. It may be uploaded again later, by other threads: these may hang."""
        with self._lock:
            underway = dict(self._underway)
            self._pools.clear()
        for future, (_, transfer) in underway.items():
            transfer.is_cancelled = True
            _abandon(future)

    def _start(self, tier: RemoteTier, work: Callable[[Transfer], bool]) -> Future[bool]:
        transfer = Transfer()

        def attempt() -> bool:
            try:
                return work(transfer)
            except (RemoteUnavailable, OSError, StoreError):
                return False

        with self._lock:
            pool = self._pools[tier]
        future = pool.submit(attempt)
        with self._lock:
            self._underway[future] = tier, transfer
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[bool]) -> None:
        with self._lock:
            del self._underway[future]

    def _put_blob(self, tier: RemoteTier, file: FileEntry, transfer: Transfer) -> bool:
        if tier.has(file.digest, transfer, to_put=True):
            return True
        # Hashed before it is sent: a blob that is damaged here would stay damaged there.
        if tier.writing.is_open or transfer.is_cancelled or not self._blobs.is_intact(file.digest):
            return False
        self._add(0, file.size)
        try:
            tier.put_blob(file, self._blobs.path(file.digest), transfer, lambda count: self._add(count, 0))
        except BaseException:
            self._add(0, -file.size)
            raise
        return True

    def _add(self, gone: int, everything: int) -> None:
        with self._lock:
            self._gone += gone
            self._all += everything


def _abandon(future: Future[bool]) -> None:
    """Stop waiting for the thread of *future*."""
    with suppress(InvalidStateError):
        future.set_result(False)
