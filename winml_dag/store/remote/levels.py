"""All remotes of a store as one, the nearest first: what one has not got, or will not say, the next is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import Blobs
from winml_dag.store.locks import Locks
from winml_dag.store.record import Record
from winml_dag.store.remote.clock import Clock, SystemClock
from winml_dag.store.remote.counting import Counting
from winml_dag.store.remote.crew import side_by_side
from winml_dag.store.remote.fetching import Fetching
from winml_dag.store.remote.guardedlevel import GuardedLevel
from winml_dag.store.remote.knocks import Knocks
from winml_dag.store.remote.offering import Offers
from winml_dag.store.remote.protocol import Remote
from winml_dag.store.remote.settings import LevelSettings, Mode
from winml_dag.store.remote.traffic import Traffic
from winml_dag.store.remote.trust import Trust

# Questions and answers are small: waiting for each is what takes time.
_QUESTIONS_AT_ONCE = 16
# Three pieces of a megabyte each are in memory for a transfer.
_BLOBS_AT_ONCE = 8


@dataclass(frozen=True)
class Level:
    """A remote and what may be done with it."""

    remote: Remote
    settings: LevelSettings


class Levels:
    """See ``Behind``.

    Args:
        blobs: of the store of this machine.
        scratch: a folder of its own for what has not come whole, on the device of *blobs*; made if need be, and not
            that of runs, which is swept.
        tell: gets a sentence for the user now and then, from any thread.
        locks: those of the store, which is not cleared then while a blob is on its way; by default some of its own.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        blobs: Blobs,
        trust: Trust,
        *,
        scratch: Path,
        tell: Callable[[str], None],
        locks: Locks | None = None,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._count = Counting()
        self._levels = [
            GuardedLevel(level.remote, level.settings, trust, self._count, tell, clock)
            for level in levels
            if level.settings.mode is not Mode.OFF
        ]
        self._knocks = Knocks(self._levels, clock)
        self._fetching = Fetching(blobs, scratch, locks or Locks(scratch), self._count, clock)
        self._offers = Offers(blobs, clock)

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        left, asked = list(dict.fromkeys(keys)), False
        for number, level in enumerate(self._levels):
            if not left or level.reading.alone:
                continue
            asked = True
            with self._knocks.beside(number):
                answers = side_by_side(level.record, left, _QUESTIONS_AT_ONCE)
            for record in answers:
                if record is not None:
                    found[record.cache_key] = record
                    self._back_fill_record(record, number)
            left = [key for key in left if key not in found]
        if asked:
            self._count.add(Traffic(records_found=len(found), records_missed=len(left)))
        return found

    def has(self, digests: Collection[str]) -> set[str]:
        there: set[str] = set()
        left = list(dict.fromkeys(digests))
        for number, level in enumerate(self._levels):
            if not left:
                break
            with self._knocks.beside(number):
                answers = side_by_side(level.has, left, _QUESTIONS_AT_ONCE)
            there.update(digest for digest, has in zip(left, answers, strict=True) if has)
            left = [digest for digest in left if digest not in there]
        return there

    def fetch(self, files: Collection[FileEntry]) -> list[FileEntry]:
        wanted = {file.digest: file for file in files if file.digest.startswith("sha256:")}
        # The biggest first: one that begins last would be waited for alone.
        ordered = sorted(wanted.values(), key=lambda file: -file.size)
        had = {
            file.digest
            for file, is_here in zip(ordered, side_by_side(self._fetch, ordered, _BLOBS_AT_ONCE), strict=True)
            if is_here
        }
        return [file for file in files if file.digest not in had]

    def offer(self, record: Record) -> None:
        for level in self._levels:
            if level.takes:
                self._offers.record(level, record)

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        self._offers.settle(told)
        for level in self._levels:
            level.tell_of_refused()

    def traffic(self) -> Traffic:
        return self._count.traffic

    def close(self) -> None:
        self._offers.drop()
        for level in self._levels:
            level.close()

    def _fetch(self, file: FileEntry) -> bool:
        came_from = self._fetching.fetch(file, self._levels)
        if came_from is None:
            return False
        for level in self._levels[: max(0, came_from)]:
            if level.takes and level.settings.is_back_filled:
                self._offers.blob(level, file)
        return True

    def _back_fill_record(self, record: Record, came_from: int) -> None:
        # Without its blobs: they come along when they pass through here, and until then they are in the farther level.
        for level in self._levels[:came_from]:
            if level.takes and level.settings.is_back_filled:
                self._offers.record(level, record, with_blobs=False)
