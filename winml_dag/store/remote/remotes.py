"""All remotes of a store as one: what the nearest has not got, or does not answer, the next is asked for.

None of them fails a build or stalls it. A remote that does not answer, or answers what it should not, has nothing; that
is said once, and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.locks import Locks
from winml_dag.store.records import Record
from winml_dag.store.remote.download import Downloader
from winml_dag.store.remote.settings import Mode
from winml_dag.store.remote.tier import RemoteTier, Tier
from winml_dag.store.remote.traffic import Traffic, TrafficCounter
from winml_dag.store.remote.transfer import Transfer, ask_all
from winml_dag.store.remote.trust import Trust
from winml_dag.store.remote.upload import Uploader

# Questions and answers are small: waiting for each is what takes time.
_QUESTIONS_AT_ONCE = 16
_BLOBS_AT_ONCE = 8
# Longer than a remote takes for an answer that is well, and short beside what a dead one costs.
_PATIENCE_SECONDS = 0.25


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
