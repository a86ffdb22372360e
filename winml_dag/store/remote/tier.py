"""One remote while it is used: what is read from it and what is put there, each behind a circuit breaker of its own.

Two, because a remote that takes nothing more can still be read, and because the questions of a build do not wait behind
what is put in the background.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.locks import Locks
from winml_dag.store.quantities import counted
from winml_dag.store.record import Record
from winml_dag.store.remote.download import Downloader
from winml_dag.store.remote.protocol import ATTEMPT_SECONDS, SETTLING_BYTES_PER_SECOND, Remote, Traffic, TrafficCounter
from winml_dag.store.remote.settings import Mode, TierSettings, shown
from winml_dag.store.remote.transfer import CircuitBreaker, RemoteUnavailable, Transfer, ask_all
from winml_dag.store.remote.trust import Refused, Trust
from winml_dag.store.remote.upload import Uploader

T = TypeVar("T")

_NOT_READ = "it is left alone for the rest of this run, and what it may have is made here instead"
_NOT_PUT = "nothing more is put there in this run, what is made stays on this machine"
# More are only counted: a namespace that somebody has filled without a key has thousands.
_MOST_TOLD = 3
# The blob without a byte: whether it is there does not matter.
_EMPTY = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# Questions and answers are small: waiting for each is what takes time.
_QUESTIONS_AT_ONCE = 16
_BLOBS_AT_ONCE = 8
# Longer than a healthy remote takes to answer, and short compared with the time that a dead one costs.
_PATIENCE_SECONDS = 0.25


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


class Remotes:
    """Used by several threads at once. No method raises RemoteError.

    Args:
        tiers: the nearest first.
        blobs: of the store of this machine.
        scratch: a folder of its own for what has not come whole, on the device of *blobs*; made if need be. Not that of
            runs, which is swept.
        tell: gets a sentence for the user now and then, from any thread.
        received: told how many bytes of blobs have come, from any thread.
        locks: those of the store, which is then not cleared while a blob is on its way; by default others.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        blobs: Blobs,
        trust: Trust,
        *,
        scratch: Path,
        tell: Callable[[str], None],
        received: Callable[[int], None] | None = None,
        locks: Locks | None = None,
    ) -> None:
        self._count = TrafficCounter()
        self._tiers = [
            RemoteTier(tier, trust, self._count, tell) for tier in tiers if tier.settings.mode is not Mode.OFF
        ]
        # Those that have been asked something, or are probed.
        self._asked: set[RemoteTier] = set()
        self._downloader = Downloader(blobs, scratch, locks or Locks(scratch), self._count, received)
        self._uploader = Uploader(blobs)

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has, asked for side by side; each was signed by somebody we trust, for
        its key. Their blobs stay where they are.
        """
        found: dict[str, Record] = {}
        left, asked = list(dict.fromkeys(keys)), False
        for number, tier in enumerate(self._tiers):
            if not left or tier.reading.is_open:
                continue
            asked = True
            with self._probing_behind(number):
                answers = ask_all(tier.record, left, _QUESTIONS_AT_ONCE, tier.reading)
            for record in answers:
                if record is not None:
                    found[record.cache_key] = record
                    # Without its blobs: they are put there when they pass through here.
                    for nearer in self._filled_from(number):
                        self._uploader.record(nearer, record, with_blobs=False)
            left = [key for key in left if key not in found]
        if asked:
            self._count.add(Traffic(records_found=len(found), records_missed=len(left)))
        return found

    def has(self, digests: Collection[str]) -> set[str]:
        """Those of *digests* whose blob can be fetched, as far as remotes say; asked for once in a run."""
        there: set[str] = set()
        left = list(dict.fromkeys(digests))
        for number, tier in enumerate(self._tiers):
            if not left:
                break
            with self._probing_behind(number):
                answers = ask_all(tier.has, left, _QUESTIONS_AT_ONCE, tier.reading)
            there.update(digest for digest, has in zip(left, answers, strict=True) if has)
            left = [digest for digest in left if digest not in there]
        return there

    def fetch(self, files: Collection[FileEntry]) -> list[FileEntry]:
        """Have the blobs of *files* in the store of this machine, side by side, each checked before it has a name
        there; returns those that could not be had. Raises StoreError when they cannot be written there.
        """
        wanted = {file.digest: file for file in files if file.digest.startswith("sha256:")}
        # The biggest first: one that begins last would be waited for alone.
        ordered = sorted(wanted.values(), key=lambda file: -file.size)
        is_here = ask_all(self._fetch, ordered, _BLOBS_AT_ONCE)
        had = {file.digest for file, here in zip(ordered, is_here, strict=True) if here}
        return [file for file in files if file.digest not in had]

    def offer(self, record: Record) -> None:
        """Begin to put *record*, whose blobs are here, where we may write: its blobs, and then itself."""
        for tier in self._tiers:
            if tier.is_writable:
                self._uploader.record(tier, record)

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        """Wait until all that was offered is there, or is given up; *told* gets bytes that have gone and all that have
        to.
        """
        self._uploader.settle(told)
        for tier in self._tiers:
            tier.tell_of_refused()

    def traffic(self) -> Traffic:
        """What has gone so far."""
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
        """The nearer tiers that get what the tier of *number* had."""
        return (tier for tier in self._tiers[: max(0, number)] if tier.is_writable and tier.settings.is_back_filled)

    @contextmanager
    def _probing_behind(self, number: int) -> Iterator[None]:
        """While the block asks the tier of *number* something for the first time, and that takes long, probe those
        behind it: tiers that are dead are found side by side, and cost two seconds together.
        """
        tier, behind = self._tiers[number], self._tiers[number + 1 :]
        first = tier not in self._asked
        self._asked.add(tier)
        if not first or not behind:
            yield
            return

        def probe() -> None:
            for each in behind:
                if each not in self._asked:
                    self._asked.add(each)
                    with suppress(RuntimeError):  # no more threads
                        threading.Thread(target=each.probe, name="remote", daemon=True).start()

        timer = threading.Timer(_PATIENCE_SECONDS, probe)
        timer.daemon = True
        with suppress(RuntimeError):
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
