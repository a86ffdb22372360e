"""One level while it is used: what is read from it and what is put there, each behind a guard of its own.

Two guards, because a remote that takes nothing more, or takes it slowly, can still be read, and because the questions
of a build do not wait behind what is put there in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from winml_dag.store.artifact import FileEntry
from winml_dag.store.quantities import counted
from winml_dag.store.record import Record
from winml_dag.store.remote.clock import Clock
from winml_dag.store.remote.counting import Counting
from winml_dag.store.remote.guard import Guard, LeftAlone
from winml_dag.store.remote.protocol import Remote
from winml_dag.store.remote.settings import LevelSettings, Mode
from winml_dag.store.remote.traffic import Traffic
from winml_dag.store.remote.trust import Refused, Trust
from winml_dag.store.remote.urls import shown

_NOT_READ = "it is left alone for the rest of this run, and what it may have is made here instead"
_NOT_PUT = "nothing more is put there in this run, what is made stays on this machine"
# More are counted only: a namespace that somebody has filled without a key has thousands.
_MOST_TOLD = 3


class GuardedLevel:
    """Answers, or None where a remote has nothing to say; used by several threads at once."""

    def __init__(
        self,
        remote: Remote,
        settings: LevelSettings,
        trust: Trust,
        count: Counting,
        tell: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.name = shown(settings.url) + (f" ({settings.namespace})" if settings.namespace else "")
        self.settings = settings
        self.takes = settings.mode is Mode.READ_WRITE
        self.writing = Guard(remote, self.name, _NOT_PUT, count, tell, clock)
        # What cannot be read is not written to either, and that is said with one sentence.
        self.reading = Guard(remote, self.name, _NOT_READ, count, tell, clock, then=self.writing.stop)
        self._remote = remote
        self._trust = trust
        self._count = count
        self._tell = tell
        self._there: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._refused = self._withheld = 0

    def record(self, key: str) -> Record | None:
        """The record of *key* if one is there that is believed."""
        try:
            data = self.reading.ask(lambda remote: remote.record(key))
        except LeftAlone:
            return None
        if data is None:
            return None
        self._count.add(Traffic(record_bytes=len(data)))
        try:
            return self._trust.verify(data, key, self.settings.namespace, self.settings.trusted)
        except Refused as refused:
            self._refuse(key, refused)
            return None

    def has(self, digest: str, *, to_put: bool = False) -> bool:
        """Whether the blob is there; asked once."""
        if self.reading.alone and not to_put:
            return False
        known = self._there.get(digest)
        if known is None:
            guard = self.writing if to_put else self.reading
            try:
                known = guard.ask(lambda remote: remote.has(digest))
            except LeftAlone:
                return False
            self._there[digest] = known
        return known

    def has_not(self, digest: str) -> None:
        """The blob has turned out not to be there."""
        self._there[digest] = False

    def put_blob(self, file: FileEntry, path: Path, told: Callable[[int], None]) -> None:
        """Have the blob of *file*, which lies at *path*, there. Raises LeftAlone when it is not."""

        def once() -> bool:
            gone = 0

            def moved(count: int) -> None:
                nonlocal gone
                gone += count
                told(count)

            try:
                return self.writing.put(file.digest, path, moved)
            except BaseException:
                told(-gone)
                raise
            finally:
                self._count.add(Traffic(bytes_put=gone))

        if self.writing.trying(once):
            self._count.add(Traffic(blobs_put=1))
        self._there[file.digest] = True

    def put_record(self, record: Record) -> bool:
        """Put *record* there unless another is; whether it was put. Raises LeftAlone when there is no answer."""
        try:
            data = self._trust.sign(record, self.settings.namespace)
        except Refused as refused:
            with self._lock:
                self._withheld += 1
                aloud = self._withheld <= _MOST_TOLD
            if aloud:
                stage = record.ingredients.stage
                self._tell(f"The record of {stage} is not put into the remote {self.name}: {refused}.")
            return False
        put = self.writing.ask(lambda remote: remote.put_record(record.cache_key, data))
        if put:
            self._count.add(Traffic(records_put=1, record_bytes=len(data)))
        return put

    def tell_of_refused(self) -> None:
        """Say how many records were refused, and how many not put, since those that were named."""
        with self._lock:
            refused, self._refused = max(0, self._refused - _MOST_TOLD), min(self._refused, _MOST_TOLD)
            withheld, self._withheld = max(0, self._withheld - _MOST_TOLD), min(self._withheld, _MOST_TOLD)
        if refused:
            self._tell(f"Besides, {counted(refused, 'record')} of the remote {self.name} had to be refused.")
        if withheld:
            self._tell(f"Besides, {counted(withheld, 'record')} were not put into the remote {self.name}.")

    def close(self) -> None:
        """Give up what is underway and let go of connections."""
        self.reading.let_go()
        self.writing.let_go()
        self.tell_of_refused()
        # Closing may hang as anything may, and nobody needs it done.
        threading.Thread(target=self._remote.close, name="remote", daemon=True).start()

    def _refuse(self, key: str, refused: Refused) -> None:
        self._count.add(Traffic(refused=1))
        with self._lock:
            self._refused += 1
            aloud = self._refused <= _MOST_TOLD
        if aloud:
            self._tell(f"A record in the remote {self.name} is refused ({key[:12]}): {refused.message.rstrip('.')}.")
