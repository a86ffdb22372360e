"""All remotes of a store as one: what the nearest tier does not have, or does not answer, the next is asked for.

No tier fails or stalls a build. One that does not answer, or answers wrongly, counts as empty, with one message to the
user. Each tier has a circuit breaker for reading and one for writing, because a full remote can still be read, and the
requests of a build do not wait for uploads.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.locks import Locks
from winml_dag.store.quantities import counted
from winml_dag.store.records import Record
from winml_dag.store.remote.download import Downloader
from winml_dag.store.remote.protocol import PART_SECONDS, Remote, TrafficCounter
from winml_dag.store.remote.settings import Mode, TierSettings, shown
from winml_dag.store.remote.transfer import (
    LEAST_BYTES_PER_SECOND,
    POLL_SECONDS,
    CircuitBreaker,
    RemoteUnavailable,
    ThreadPool,
    Transfer,
    ask_all,
)
from winml_dag.store.remote.trust import Refused, Trust
from winml_dag.store.usage import Traffic

_NOT_READ = "it is ignored for the rest of this run, and what it may have is built here"
_NOT_PUT = "nothing more is uploaded there in this run"
# More are only counted: a namespace that was filled without a key has thousands.
_MOST_WARNINGS = 3
# Requests and answers are small: their latency is what takes time.
_REQUESTS_AT_ONCE = 16
_BLOBS_AT_ONCE = 8
# Each reads its file in small pieces, so this bounds memory as well. A record waits in a thread for its blobs, whose
# uploads have all started before: the pool is a queue.
_UPLOADS_AT_ONCE = 8


class RemoteTier:
    """One remote in use. Thread-safe. *warn* gets sentences for the user."""

    def __init__(
        self, remote: Remote, settings: TierSettings, trust: Trust, count: TrafficCounter, warn: Callable[[str], None]
    ) -> None:
        self.remote = remote
        self.settings = settings
        self.name = shown(self.settings.url) + (f" ({self.settings.namespace})" if self.settings.namespace else "")
        self.is_writable = self.settings.mode is Mode.READ_WRITE
        self.writing = CircuitBreaker(self.name, _NOT_PUT, count, warn)
        # What cannot be read is not written either.
        self.reading = CircuitBreaker(self.name, _NOT_READ, count, warn, self.writing)
        self._trust = trust
        self._count = count
        self._warn = warn
        # How many records there were of each sort that the user is warned of.
        self._records_warned: Counter[str] = Counter()
        self._blobs: dict[str, bool] = {}
        self._lock = threading.Lock()

    def record(self, key: str, transfer: Transfer) -> Record | None:
        """The record of *key*; None if there is none that is trusted, or no answer."""
        try:
            data = self.reading.ask(transfer, partial(self.remote.record, key))
        except RemoteUnavailable:
            return None
        if data is None:
            return None
        self._count.add(record_bytes=len(data))
        try:
            return self._trust.verify(data, key, self.settings.namespace, self.settings.trusted)
        except Refused as refused:
            self._count.add(refused=1)
            sentence = f"A record in the remote {self.name} is rejected ({key[:12]}): {refused.message.rstrip('.')}."
            self._warn_of_record(sentence, f"of the remote {self.name} were rejected")
            return None

    def has(self, digest: str, transfer: Transfer, *, to_put: bool = False) -> bool:
        """Whether the blob exists; asked once."""
        if self.reading.is_open and not to_put:
            return False
        if digest not in self._blobs:
            breaker = self.writing if to_put else self.reading
            try:
                self._blobs[digest] = breaker.ask(transfer, partial(self.remote.has, digest))
            except RemoteUnavailable:
                return False
        return self._blobs[digest]

    def has_not(self, digest: str) -> None:
        self._blobs[digest] = False

    def put_blob(self, file: FileEntry, path: Path, transfer: Transfer, on_progress: Callable[[int], None]) -> None:
        """Upload the blob of *file* at *path* unless it exists. *on_progress* gets the sent bytes, and a negative
        number for those of a failed attempt. Raises RemoteUnavailable when the blob does not exist then.
        """

        # Some libraries report no progress, so an upload has a time limit as a whole.
        seconds = PART_SECONDS + file.size / (LEAST_BYTES_PER_SECOND / _UPLOADS_AT_ONCE)

        def attempt() -> bool:
            sent = 0

            def moved(count: int) -> None:
                nonlocal sent
                sent += count
                on_progress(count)
                transfer.check()

            try:
                return transfer.wait_for(lambda: self.remote.put(file.digest, path, moved), seconds)
            except BaseException:
                on_progress(-sent)
                raise
            finally:
                self._count.add(bytes_put=sent)

        if self.writing.run(transfer, attempt):
            self._count.add(blobs_put=1)
        self._blobs[file.digest] = True

    def put_record(self, record: Record, transfer: Transfer) -> bool:
        """Upload *record* unless its key exists; return whether it was stored. Raises RemoteUnavailable."""
        try:
            data = self._trust.sign(record, self.settings.namespace)
        except Refused as refused:
            there = f"put into the remote {self.name}"
            sentence = f"The record of {record.key_inputs.stage} is not {there}: {refused}."
            self._warn_of_record(sentence, f"were not {there}")
            return False
        put = self.writing.ask(transfer, partial(self.remote.put_record, record.cache_key, data))
        if put:
            self._count.add(records_put=1, record_bytes=len(data))
        return put

    def flush_warnings(self) -> None:
        """Report how many records there were beyond those that were named."""
        for sort, number in self._records_warned.items():
            if number > _MOST_WARNINGS:
                self._warn(f"Besides, {counted(number - _MOST_WARNINGS, 'record')} {sort}.")
                self._records_warned[sort] = _MOST_WARNINGS

    def close(self) -> None:
        self.flush_warnings()
        # Closing connections may hang too, and nothing depends on it.
        threading.Thread(target=self.remote.close, name="remote", daemon=True).start()

    def _warn_of_record(self, sentence: str, sort: str) -> None:
        with self._lock:
            self._records_warned[sort] += 1
            is_shown = self._records_warned[sort] <= _MOST_WARNINGS
        if is_shown:
            self._warn(sentence)


class Uploader:
    """Uploads in the background: blobs first, and a record once all of its blobs exist in the remote. Thread-safe.

    So whenever a process is killed, no uploaded record lacks its blobs. Nothing is overwritten: an existing record of
    the same key stays.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        # One for each tier: the threads of one that hangs are lost.
        self._pools: defaultdict[RemoteTier, ThreadPool] = defaultdict(partial(ThreadPool, _UPLOADS_AT_ONCE))
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


class Remotes:
    """Thread-safe. No method raises RemoteError.

    Args:
        tiers: remotes with their settings, the nearest first.
        blobs: the local ones.
        scratch: a folder for incomplete downloads, on the device of *blobs*; created if needed. Not that of runs, which
            is swept.
        warn: gets sentences for the user, from any thread.
        on_received: gets the sizes of received pieces of blobs, from any thread.
        locks: those of the store, which is not cleared during a download.
    """

    def __init__(
        self,
        tiers: Iterable[tuple[Remote, TierSettings]],
        blobs: Blobs,
        trust: Trust,
        *,
        scratch: Path,
        locks: Locks,
        warn: Callable[[str], None],
        on_received: Callable[[int], None] | None = None,
    ) -> None:
        self._count = TrafficCounter()
        self._tiers = [
            RemoteTier(remote, settings, trust, self._count, warn)
            for remote, settings in tiers
            if settings.mode is not Mode.OFF
        ]
        self._downloader = Downloader(blobs, scratch, locks, self._count, on_received)
        self._uploader = Uploader(blobs)

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has, each signed by a trusted key for its cache key; requested in
        parallel. Their blobs are not fetched.
        """
        found: dict[str, Record] = {}
        left, requested = list(dict.fromkeys(keys)), False
        for number, tier in enumerate(self._tiers):
            if not left or tier.reading.is_open:
                continue
            requested = True
            answers = ask_all(tier.record, left, _REQUESTS_AT_ONCE, tier.reading)
            for record in filter(None, answers):
                found[record.cache_key] = record
                # Its blobs are uploaded there when they are fetched.
                for nearer in self._filled_from(number):
                    self._uploader.record(nearer, record, with_blobs=False)
            left = [key for key in left if key not in found]
        if requested:
            self._count.add(records_found=len(found), records_missed=len(left))
        return found

    def has(self, digests: Collection[str]) -> set[str]:
        """Those of *digests* whose blob a remote says it has; each is asked for once in a run."""
        found: set[str] = set()
        left = list(dict.fromkeys(digests))
        for tier in self._tiers:
            if not left:
                break
            answers = ask_all(tier.has, left, _REQUESTS_AT_ONCE, tier.reading)
            found.update(digest for digest, has in zip(left, answers, strict=True) if has)
            left = [digest for digest in left if digest not in found]
        return found

    def fetch(self, files: Collection[FileEntry]) -> list[FileEntry]:
        """Fetch the blobs of *files*, one of each digest, into the local store in parallel, each verified before it is
        stored; return those that no remote delivered. Raises StoreError when they cannot be written.
        """
        # The largest first: one that starts last would run alone.
        ordered = sorted(files, key=lambda file: -file.size)
        is_here = ask_all(self._fetch, ordered, _BLOBS_AT_ONCE)
        return [file for file, here in zip(ordered, is_here, strict=True) if not here]

    def offer(self, record: Record) -> None:
        """Start to upload *record*, whose blobs are local, to the writable tiers."""
        for tier in self._tiers:
            if tier.is_writable:
                self._uploader.record(tier, record)

    def settle(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Wait until all uploads are done or given up; *on_progress* gets the bytes sent and the total."""
        self._uploader.settle(on_progress)
        for tier in self._tiers:
            tier.flush_warnings()

    def traffic(self) -> Traffic:
        return self._count.traffic

    def close(self) -> None:
        """Give up what is under way and close connections."""
        self._uploader.close()
        for tier in self._tiers:
            tier.close()

    def _fetch(self, file: FileEntry, transfer: Transfer) -> bool:
        came_from = self._downloader.fetch(file, self._tiers, transfer)
        for tier in self._filled_from(came_from or 0):
            self._uploader.blob(tier, file)
        return came_from is not None

    def _filled_from(self, number: int) -> Iterator[RemoteTier]:
        """The nearer tiers that get a copy of what tier *number* had."""
        return (tier for tier in self._tiers[: max(0, number)] if tier.is_writable and tier.settings.is_back_filled)
