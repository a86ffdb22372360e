"""What is put into remotes, in the background: blobs first, and a record when all of its blobs are there.

So at whatever moment a process is killed, no record is there without its blobs. Nothing is ever overwritten: when there
is another record of that key already, the first stays, and ours is ours alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from winml_dag.errors import StoreError
from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.record import Record
from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.crew import Crew
from winml_dag.store.remote.guard import LeftAlone
from winml_dag.store.remote.guardedlevel import GuardedLevel

# Each reads its file in small pieces, so this bounds memory as well.
_AT_ONCE = 4
# How long who waits for all that looks away at most: threads wake it, but an interrupt cannot on every system.
_LOOK_SECONDS = 0.2


class Offers:
    """Used by several threads at once."""

    def __init__(self, blobs: Blobs, clock: Clock) -> None:
        self._blobs = blobs
        self._clock = clock
        self._crew = Crew(_AT_ONCE)
        self._changed = threading.Condition()
        self._blobs_of: dict[tuple[int, str], _Blob] = {}
        self._open = 0
        self._gone = self._all = 0

    def record(self, level: GuardedLevel, record: Record, *, with_blobs: bool = True) -> None:
        """Begin to put *record* there; its blobs, which are here, first."""
        files = {file.digest: file for file in record.files()} if with_blobs else {}
        # What was fetched has no log here, and is as good without.
        if with_blobs and record.log is not None and not self._blobs.missing([record.log]):
            files[record.log.digest] = record.log
        waiting = _Waiting(len(files) + 1, lambda: self._do(lambda: self._put_record(level, record)))
        for file in files.values():
            self._when_there(level, file, waiting)
        waiting.one_there()

    def blob(self, level: GuardedLevel, file: FileEntry) -> None:
        """Begin to put the blob of *file* there, which is here."""
        self._when_there(level, file, None)

    def settle(self, told: Callable[[int, int], None] | None) -> None:
        """Wait until nothing is left to do."""
        shown: tuple[int, int] | None = None
        while True:
            with self._changed:
                if self._open and shown == (self._gone, self._all):
                    self._clock.wait(self._changed, _LOOK_SECONDS)
                left, now = self._open, (self._gone, self._all)
            if told is not None and now != shown:
                told(*now)
            shown = now
            if not left:
                return

    def drop(self) -> None:
        """Forget what has not been begun."""
        with self._changed:
            self._open -= self._crew.drop()
            # Those that nobody will put now may be offered again.
            self._blobs_of = {name: blob for name, blob in self._blobs_of.items() if blob.there}
            self._changed.notify_all()

    def _when_there(self, level: GuardedLevel, file: FileEntry, waiting: _Waiting | None) -> None:
        with self._changed:
            blob = self._blobs_of.get((id(level), file.digest))
            begin = blob is None or blob.failed
            if blob is None or begin:
                blob = self._blobs_of[id(level), file.digest] = _Blob()
            there = blob.there
            if waiting is not None and not there:
                blob.awaited_by.append(waiting)
        if there and waiting is not None:
            waiting.one_there()
        if begin:
            self._do(lambda: self._put_blob(level, file, blob))

    def _put_blob(self, level: GuardedLevel, file: FileEntry, blob: _Blob) -> None:
        try:
            if not level.has(file.digest, to_put=True):
                if level.writing.alone:
                    raise LeftAlone
                # What leaves the store is hashed on its way: a blob that has rotted here would stay there for ever.
                if not self._blobs.is_sound(file.digest):
                    raise LeftAlone
                self._told_all(file.size)
                try:
                    level.put_blob(file, self._blobs.path(file.digest), self._told_gone)
                except BaseException:
                    self._told_all(-file.size)
                    raise
        except (LeftAlone, OSError, StoreError):
            with self._changed:
                blob.failed = True
            return
        with self._changed:
            blob.there = True
            awaited_by, blob.awaited_by = blob.awaited_by, []
        for waiting in awaited_by:
            waiting.one_there()

    def _put_record(self, level: GuardedLevel, record: Record) -> None:
        try:
            level.put_record(record)
        except LeftAlone:
            return

    def _do(self, task: Callable[[], None]) -> None:
        def work() -> None:
            try:
                task()
            finally:
                with self._changed:
                    self._open -= 1
                    self._changed.notify_all()

        with self._changed:
            self._open += 1
        self._crew.do(work)

    def _told_all(self, count: int) -> None:
        with self._changed:
            self._all += count
            self._changed.notify_all()

    def _told_gone(self, count: int) -> None:
        with self._changed:
            self._gone += count
            self._changed.notify_all()


class _Blob:
    """A blob on its way to one level, and who waits for it."""

    def __init__(self) -> None:
        self.there = self.failed = False
        self.awaited_by: list[_Waiting] = []


class _Waiting:
    """Calls *then* when :meth:`one_there` has been called *count* times."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count = count
        self._then = then
        self._lock = threading.Lock()

    def one_there(self) -> None:
        with self._lock:
            self._count -= 1
            all_there = self._count == 0
        if all_there:
            self._then()
