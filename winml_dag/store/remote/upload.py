"""Records and blobs put into remotes in the background: blobs first, and a record when all of its blobs are there.

So at whatever moment a process is killed, no record is there without its blobs. Nothing is overwritten: if there is
another record of that key, it stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.records import Record
from winml_dag.store.remote.protocol import PART_SECONDS
from winml_dag.store.remote.tier import RemoteTier
from winml_dag.store.remote.transfer import POLL_SECONDS, RemoteUnavailable, ThreadPool, Transfer

# Each reads its file in small pieces, so this bounds memory as well.
_BLOBS_AT_ONCE = 4
# Their threads wait for blobs, and have little to do themselves.
_RECORDS_AT_ONCE = 8


class Uploader:
    """Used by several threads at once."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._of_blobs, self._of_records = ThreadPool(_BLOBS_AT_ONCE), ThreadPool(_RECORDS_AT_ONCE)
        # Reentrant: where the system has no more threads, work is done by who begins it.
        self._lock = threading.RLock()
        # Whether each blob is there, by its tier and digest.
        self._known: dict[tuple[RemoteTier, str], Future[bool]] = {}
        self._underway: dict[Future[bool], Transfer] = {}
        self._gone = self._all = 0

    def record(self, tier: RemoteTier, record: Record, *, with_blobs: bool = True) -> None:
        """Begin to put *record* there; its blobs, which are here, first."""
        files = {file.digest: file for file in record.files()} if with_blobs else {}
        # What was fetched has no log here, and the record is as good without.
        if with_blobs and record.log is not None and not self._blobs.missing([record.log]):
            files[record.log.digest] = record.log
        blobs = [self.blob(tier, file) for file in files.values()]
        with self._lock:
            self._begin(self._of_records, lambda transfer: self._put_record(tier, record, blobs, transfer))

    def blob(self, tier: RemoteTier, file: FileEntry) -> Future[bool]:
        """Begin to put the blob of *file* there, which is here; whether it is there then."""
        with self._lock:
            known = self._known.get((tier, file.digest))
            if known is None or (known.done() and not known.result()):
                known = self._begin(self._of_blobs, lambda transfer: self._put_blob(tier, file, transfer))
                self._known[tier, file.digest] = known
            return known

    def settle(self, told: Callable[[int, int], None] | None) -> None:
        """Wait until nothing is under way. *told* gets the bytes that have gone and all that have to go."""
        shown: tuple[int, int] | None = None
        while True:
            with self._lock:
                underway, now = dict(self._underway), (self._gone, self._all)
            if told is not None and now != shown:
                told(*now)
                shown = now
            if not underway:
                return
            wait(underway, POLL_SECONDS)
            for future, transfer in underway.items():
                if transfer.abandon_if_hung():
                    _abandon(future)

    def close(self) -> None:
        """Give up what is under way. It may be offered again."""
        with self._lock:
            underway = dict(self._underway)
        for future, transfer in underway.items():
            transfer.is_cancelled = True
            _abandon(future)

    def _begin(self, pool: ThreadPool, work: Callable[[Transfer], bool]) -> Future[bool]:
        # Some libraries do not tell how far a part is.
        transfer = Transfer(PART_SECONDS)
        future = Future[bool]()
        self._underway[future] = transfer
        future.add_done_callback(self._ended)
        pool.submit(_run, future, lambda: work(transfer))
        return future

    def _ended(self, future: Future[bool]) -> None:
        with self._lock:
            del self._underway[future]

    def _put_record(self, tier: RemoteTier, record: Record, blobs: list[Future[bool]], transfer: Transfer) -> bool:
        return all(blob.result() for blob in blobs) and tier.put_record(record, transfer)

    def _put_blob(self, tier: RemoteTier, file: FileEntry, transfer: Transfer) -> bool:
        if tier.has(file.digest, transfer, to_put=True):
            return True
        # Its bytes are hashed before they go: a blob that was damaged here would stay there for ever.
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


def _run(future: Future[bool], work: Callable[[], bool]) -> None:
    try:
        there = not future.done() and work()
    except (RemoteUnavailable, OSError, StoreError):
        there = False
    with suppress(InvalidStateError):
        future.set_result(there)


def _abandon(future: Future[bool]) -> None:
    """Have nobody wait for its thread any more."""
    with suppress(InvalidStateError):
        future.set_result(False)
