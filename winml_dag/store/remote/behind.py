"""What lies behind the store of this machine: all its remotes as one, which never fail a build and never stall it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from winml_dag.store.artifact import FileEntry
from winml_dag.store.record import Record
from winml_dag.store.remote.traffic import Traffic


class Behind(Protocol):
    """Used by several threads at once. No method raises RemoteError: a remote that does not answer, or answers what it
    should not, has nothing. That is said once, and counted.
    """

    def records(self, keys: Collection[str]) -> dict[str, Record]:
        """The records of *keys* that a remote has, asked for side by side; each was signed by somebody we trust, for
        its key. Their blobs are where they are.
        """

    def has(self, digests: Collection[str]) -> set[str]:
        """Those of *digests* whose blob can be fetched, as far as remotes say; what was asked within this run is not
        asked for again.
        """

    def fetch(self, files: Collection[FileEntry]) -> list[FileEntry]:
        """Have the blobs of *files* in the store of this machine, side by side, each checked before it has a name
        there; returns those that could not be had. Raises StoreError when they cannot be written there.
        """

    def offer(self, record: Record) -> None:
        """Begin to put *record*, whose blobs are here, where we may write: its blobs, and then itself. Does not
        wait.
        """

    def settle(self, told: Callable[[int, int], None] | None = None) -> None:
        """Wait until all that was offered is there, or is given up; *told* gets bytes that have gone and all that have
        to.
        """

    def traffic(self) -> Traffic:
        """What has gone so far."""

    def close(self) -> None:
        """Give up what is underway and let go of connections."""
