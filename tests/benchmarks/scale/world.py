"""A virtual clock, and a remote on it with a limited rate of requests and bytes, processed in sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

# The existence of larger blobs is checked before they are uploaded, as in `HttpRemote.put`.
BIG_BYTES = 64 << 10


@dataclass
class VirtualClock:
    """Seconds since the start. It advances only when set."""

    seconds: float = 0.0

    def until(self, moment: float) -> None:
        self.seconds = max(self.seconds, moment)


@dataclass(frozen=True)
class Offer:
    """The capacity of a remote.

    ``latency``: seconds from a request to its response; ``per_second``: requests, in total; ``bandwidth``: bytes per
    second, in total; ``line``: the same per machine.
    """

    latency: float = 0.0
    per_second: float = inf
    bandwidth: float = inf
    line: float = inf


@dataclass
class Went:
    """The traffic with a remote."""

    record_gets: int = 0
    record_puts: int = 0
    blob_heads: int = 0
    blob_gets: int = 0
    blob_puts: int = 0
    bytes_got: int = 0
    bytes_put: int = 0

    @property
    def requests(self) -> int:
        # The existence of a record is checked before its upload, which makes two requests.
        return self.record_gets + 2 * self.record_puts + self.blob_heads + self.blob_gets + self.blob_puts

    @property
    def bytes(self) -> int:
        return self.bytes_got + self.bytes_put


class VirtualRemote:
    """Counts the protocol's requests and returns when each would be done: requests and bytes queue separately.

    ``held``: digests of blobs; callers keep track of record keys. Moments must be in ascending order.
    """

    def __init__(self, offer: Offer) -> None:
        self.went = Went()
        self.held: set[str] = set()
        self._offer = offer
        self._requests_until = self._bytes_until = 0.0

    def ask_for_records(self, now: float, number: int, found_bytes: int) -> float:
        """Return when *number* simultaneous record requests are answered, with *found_bytes* in total."""
        self.went.record_gets += number
        self.went.bytes_got += found_bytes
        return self._done(now, number, found_bytes)

    def ask_for_blobs(self, now: float, number: int) -> float:
        """Return when the existence of *number* blobs is known."""
        self.went.blob_heads += number
        return self._done(now, number, 0)

    def get(self, now: float, sizes: Iterable[int]) -> float:
        """Return when blobs of these *sizes*, requested at once, have arrived."""
        asked = list(sizes)
        self.went.blob_gets += len(asked)
        self.went.bytes_got += sum(asked)
        return self._done(now, len(asked), sum(asked))

    def put_blobs(self, now: float, files: Iterable[tuple[str, int]]) -> float:
        """Return when blobs, by digest and size, are uploaded. Existing ones are not sent again."""
        asked = sent = gone = 0
        for digest, size in files:
            there = digest in self.held
            self.held.add(digest)
            # A small blob is sent with its request: a server that has it rejects it.
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
        # Bytes queue behind those of earlier requests, without waiting for responses.
        self._bytes_until = max(self._bytes_until, self._requests_until) + size / self._offer.bandwidth
        come = max(self._bytes_until, self._requests_until + size / self._offer.line) if size else self._requests_until
        return come + self._offer.latency
