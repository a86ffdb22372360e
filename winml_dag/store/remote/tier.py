"""One remote while it is used: what is read from it and what is put there, each behind a circuit breaker of its own.

Two, because a remote that takes nothing more can still be read, and because the questions of a build do not wait behind
what is put in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from winml_dag.store.artifact import FileEntry
from winml_dag.store.quantities import counted
from winml_dag.store.records import Record
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, SETTLING_BYTES_PER_SECOND, Remote
from winml_dag.store.remote.settings import Mode, TierSettings
from winml_dag.store.remote.traffic import Traffic, TrafficCounter
from winml_dag.store.remote.transfer import CircuitBreaker, RemoteUnavailable, Transfer
from winml_dag.store.remote.trust import Refused, Trust
from winml_dag.store.remote.urls import shown

T = TypeVar("T")

_NOT_READ = "it is left alone for the rest of this run, and what it may have is made here instead"
_NOT_PUT = "nothing more is put there in this run, what is made stays on this machine"
# More are only counted: a namespace that somebody has filled without a key has thousands.
_MOST_TOLD = 3
# The blob without a byte: whether it is there does not matter.
_EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@dataclass(frozen=True)
class Tier:
    """A remote and what may be done with it."""

    remote: Remote
    settings: TierSettings


class RemoteTier:
    """Answers, or None where a remote has none; used by several threads at once. *tell* gets sentences for the user."""

    def __init__(self, tier: Tier, trust: Trust, count: TrafficCounter, tell: Callable[[str], None]) -> None:
        self.remote = tier.remote
        self.settings = tier.settings
        self.name = shown(self.settings.url) + (f" ({self.settings.namespace})" if self.settings.namespace else "")
        self.is_writable = self.settings.mode is Mode.READ_WRITE
        self.writing = CircuitBreaker(self.name, _NOT_PUT, count, tell)
        # What cannot be read is not written to either, and the user is told once.
        self.reading = CircuitBreaker(self.name, _NOT_READ, count, tell, self.writing.open_silently)
        self._trust = trust
        self._count = count
        self._tell = tell
        self._blobs: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._refused = self._withheld = 0

    def record(self, key: str, transfer: Transfer) -> Record | None:
        """The record of *key* if one is there that is believed."""
        try:
            data = self._ask(self.reading, transfer, lambda: self.remote.record(key))
        except RemoteUnavailable:
            return None
        if data is None:
            return None
        self._count.add(Traffic(record_bytes=len(data)))
        try:
            return self._trust.verify(data, key, self.settings.namespace, self.settings.trusted)
        except Refused as refused:
            self._count.add(Traffic(refused=1))
            with self._lock:
                self._refused += 1
                aloud = self._refused <= _MOST_TOLD
            if aloud:
                why = refused.message.rstrip(".")
                self._tell(f"A record in the remote {self.name} is refused ({key[:12]}): {why}.")
            return None

    def has(self, digest: str, transfer: Transfer, *, to_put: bool = False) -> bool:
        """Whether the blob is there; asked once."""
        if self.reading.is_open and not to_put:
            return False
        known = self._blobs.get(digest)
        if known is None:
            breaker = self.writing if to_put else self.reading
            try:
                known = self._ask(breaker, transfer, lambda: self.remote.has(digest))
            except RemoteUnavailable:
                return False
            self._blobs[digest] = known
        return known

    def has_not(self, digest: str) -> None:
        """The blob has turned out not to be there."""
        self._blobs[digest] = False

    def probe(self) -> None:
        """Find out whether it answers."""
        self.has(_EMPTY, Transfer())

    def put_blob(self, file: FileEntry, path: Path, transfer: Transfer, told: Callable[[int], None]) -> None:
        """Have the blob of *file*, which lies at *path*, there. *told* gets the bytes that go, and takes those of an
        attempt back that failed. Raises RemoteUnavailable when it is not there then.
        """

        def attempt() -> bool:
            gone = 0

            def moved(count: int) -> None:
                nonlocal gone
                gone += count
                told(count)
                transfer.moved(count)
                if gone >= file.size:
                    transfer.allow(ATTEMPT_SECONDS + file.size / SETTLING_BYTES_PER_SECOND)

            try:
                return transfer.wait_for(lambda: self.remote.put(file.digest, path, moved))
            except BaseException:
                told(-gone)
                raise
            finally:
                self._count.add(Traffic(bytes_put=gone))

        if self.writing.run(transfer, attempt):
            self._count.add(Traffic(blobs_put=1))
        self._blobs[file.digest] = True

    def put_record(self, record: Record, transfer: Transfer) -> bool:
        """Put *record* there unless another is; whether it was put. Raises RemoteUnavailable."""
        try:
            data = self._trust.sign(record, self.settings.namespace)
        except Refused as refused:
            with self._lock:
                self._withheld += 1
                aloud = self._withheld <= _MOST_TOLD
            if aloud:
                stage = record.key_inputs.stage
                self._tell(f"The record of {stage} is not put into the remote {self.name}: {refused}.")
            return False
        put = self._ask(self.writing, transfer, lambda: self.remote.put_record(record.cache_key, data))
        if put:
            self._count.add(Traffic(records_put=1, record_bytes=len(data)))
        return put

    def tell_of_refused(self) -> None:
        """Tell how many records were refused, and how many not put, beyond those that were named."""
        with self._lock:
            refused, self._refused = max(0, self._refused - _MOST_TOLD), min(self._refused, _MOST_TOLD)
            withheld, self._withheld = max(0, self._withheld - _MOST_TOLD), min(self._withheld, _MOST_TOLD)
        if refused:
            self._tell(f"Besides, {counted(refused, 'record')} of the remote {self.name} had to be refused.")
        if withheld:
            self._tell(f"Besides, {counted(withheld, 'record')} were not put into the remote {self.name}.")

    def close(self) -> None:
        self.tell_of_refused()
        # Closing connections may hang too, and nobody needs it done.
        threading.Thread(target=self.remote.close, name="remote", daemon=True).start()

    def _ask(self, breaker: CircuitBreaker, transfer: Transfer, question: Callable[[], T]) -> T:
        return breaker.run(transfer, lambda: transfer.wait_for(question))
