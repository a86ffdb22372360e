"""A clock that nothing waits for, and a remote on it: so many requests and bytes in a second, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

# A blob of this size is asked for before it is put, as `HttpRemote.put` does.
BIG_BYTES = 64 << 10


@dataclass
class VirtualClock:
    """Seconds since the beginning; it goes on only when somebody sets it."""

    seconds: float = 0.0

    def until(self, moment: float) -> None:
        self.seconds = max(self.seconds, moment)


@dataclass(frozen=True)
class Offer:
    """What a remote can do. ``latency``: seconds from a request to its answer; ``per_second``: requests, of all
    together; ``bandwidth``: bytes a second, of all together; ``line``: of one machine.
    """

    latency: float = 0.0
    per_second: float = inf
    bandwidth: float = inf
    line: float = inf


@dataclass
class Went:
    """What went to a remote and back."""

    record_gets: int = 0
    record_puts: int = 0
    blob_heads: int = 0
    blob_gets: int = 0
    blob_puts: int = 0
    bytes_got: int = 0
    bytes_put: int = 0

    @property
    def requests(self) -> int:
        # A record is asked for before it is put, so each of these is two.
        return self.record_gets + 2 * self.record_puts + self.blob_heads + self.blob_gets + self.blob_puts

    @property
    def bytes(self) -> int:
        return self.bytes_got + self.bytes_put


class VirtualRemote:
    """Counts what the protocol asks for, and tells when it would be done: requests and bytes queue, each in one line.

    ``held``: digests of blobs; keys of records are the affair of who asks. Moments have to come in their order.
    """

    def __init__(self, offer: Offer) -> None:
        self.went = Went()
        self.held: set[str] = set()
        self._offer = offer
        self._requests_until = self._bytes_until = 0.0

    def ask_for_records(self, now: float, number: int, found_bytes: int) -> float:
        """When *number* questions for records, asked at once, are answered, with *found_bytes* in all."""
        self.went.record_gets += number
        self.went.bytes_got += found_bytes
        return self._done(now, number, found_bytes)

    def ask_for_blobs(self, now: float, number: int) -> float:
        """When it is known of so many blobs whether they are there."""
        self.went.blob_heads += number
        return self._done(now, number, 0)

    def get(self, now: float, sizes: Iterable[int]) -> float:
        """When blobs of these *sizes* have come, asked for at once."""
        asked = list(sizes)
        self.went.blob_gets += len(asked)
        self.went.bytes_got += sum(asked)
        return self._done(now, len(asked), sum(asked))

    def put_blobs(self, now: float, files: Iterable[tuple[str, int]]) -> float:
        """When blobs, by digest and size, have gone; what is there already does not go again."""
        asked = sent = gone = 0
        for digest, size in files:
            there = digest in self.held
            self.held.add(digest)
            # A small one goes with its question: the server that has it refuses it.
            asked += size >= BIG_BYTES
            sent += not there or size < BIG_BYTES
            gone += 0 if there and size >= BIG_BYTES else size
        self.went.blob_heads += asked
        self.went.blob_puts += sent
        self.went.bytes_put += gone
        return self._done(now, asked + sent, gone)

    def put_record(self, now: float, size: int) -> float:
        self.went.record_puts += 1
        self.went.bytes_put += size
        return self._done(now, 2, size)

    def _done(self, now: float, requests: int, size: int) -> float:
        if not requests:
            return now
        self._requests_until = max(self._requests_until, now) + requests / self._offer.per_second
        # Bytes wait behind those of earlier questions, not for the answer to come.
        self._bytes_until = max(self._bytes_until, self._requests_until) + size / self._offer.bandwidth
        come = max(self._bytes_until, self._requests_until + size / self._offer.line) if size else self._requests_until
        return come + self._offer.latency
