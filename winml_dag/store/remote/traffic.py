"""What went between this machine and its remotes: counted where it moves, told at the end of a build and by ``cache
info``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Of one run, or of many added up.

    Attributes:
        requests: attempts of any kind, repeated ones too.
        records_found, records_missed: answers to questions for records.
        records_put: records of ours that were put.
        blobs_fetched: blobs that came whole and right.
        bytes_fetched: of blobs, as they came: with what was in vain, without what was here of a blob.
        blobs_put: blobs that went.
        bytes_put: of blobs, as they went.
        refused: records and blobs that were not believed.
        left_alone: how often a remote was not used any more for the rest of a run.
        record_bytes: of records, those that came and those that went.
    """

    requests: int = 0
    records_found: int = 0
    records_missed: int = 0
    records_put: int = 0
    blobs_fetched: int = 0
    bytes_fetched: int = 0
    blobs_put: int = 0
    bytes_put: int = 0
    refused: int = 0
    left_alone: int = 0
    record_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class TrafficCounter:
    """The sum of what several threads add."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._lock = threading.Lock()

    def add(self, more: Traffic) -> None:
        with self._lock:
            self.traffic += more
