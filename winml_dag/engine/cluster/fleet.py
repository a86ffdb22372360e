"""Who may run beside whom on several machines: the admission of one machine, for each worker of a cluster and for this
machine.

A run goes to a worker that makes the very toolchain that is in its key, so what a run needs includes which workers can
serve it: then a run that waits for the one machine with a provider keeps nobody from the others.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Protocol

from winml_dag.engine.admission import UNLIMITED, Admission, Capacity, Need, Ticket, rounded
from winml_dag.engine.cluster.order import is_ours
from winml_dag.engine.stage import Node

HERE = "here"


class Worker(Protocol):
    """What a worker says of itself. ``host``: its machine, which several workers may share."""

    @property
    def address(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def places(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    def differs(self, node: Node) -> str:
        """Why it cannot run *node*, as the end of a sentence; empty when it can."""


@dataclass(frozen=True)
class PlacedNeed(Need):
    """What a run takes, and the kind of work that it is: who may do one of a kind may do all of it."""

    kind: str = HERE


@dataclass(frozen=True)
class FleetCapacity(Capacity):
    """All that there is. ``least_bytes``: the memory of the smallest worker, by which needs are rounded."""

    least_bytes: int = UNLIMITED

    def taken(self, need: Need) -> Need:
        """*need* rounded; whether it is more than a worker has is asked when it is placed."""
        if not self.counts_memory:
            return replace(need, memory_bytes=0)
        return replace(need, memory_bytes=rounded(need.memory_bytes, self.least_bytes))


@dataclass(eq=False)
class Seat:
    """A worker with what it has to do for us. ``pools`` are those of its machine. None: this machine."""

    worker: Worker | None
    admission: Admission
    pools: Counter[str] = field(default_factory=Counter)

    def taken(self, need: Need) -> Need:
        """*need* as it counts here. Devices count on the machine, and for this one as they always do."""
        counted = self.admission.capacity.taken(Need(need.memory_bytes, need.pools, need.alone))
        return counted if self.worker is None else Need(counted.memory_bytes, (), counted.alone)

    def fits(self, need: Need) -> bool:
        return self._has_devices(need) and self.admission.fits(self.taken(need))

    def fits_awaited(self, need: Need) -> bool:
        return self._has_devices(need) and self.admission.fits_awaited()

    def _has_devices(self, need: Need) -> bool:
        return self.worker is None or not any(self.pools[pool] for pool in need.pools)


class _Line:
    """Seats, those of which the least is taken first, and of equals the one that has been so for longest. With a
    thousand workers, a look at each of them for every run would take longer than short runs do.
    """

    def __init__(self) -> None:
        self._shares: dict[Seat, float] = {}
        self._by_share: dict[float, dict[Seat, None]] = {}

    def put(self, seat: Seat) -> None:
        """*seat* is new, or what is taken of it has changed."""
        self.remove(seat)
        share = self._shares[seat] = _share(seat)
        self._by_share.setdefault(share, {})[seat] = None

    def remove(self, seat: Seat) -> None:
        share = self._shares.pop(seat, None)
        if share is not None:
            del self._by_share[share][seat]
            if not self._by_share[share]:
                del self._by_share[share]

    def __iter__(self) -> Iterator[Seat]:
        for share in sorted(self._by_share):
            yield from self._by_share[share]

    @property
    def with_room(self) -> Iterator[Seat]:
        return itertools.takewhile(lambda seat: self._shares[seat] < 1, self)

    def __contains__(self, seat: Seat) -> bool:
        return seat in self._shares


@dataclass(eq=False)
class SeatTicket(Ticket):
    """What a run holds, and where; ``seat`` None: there was nobody who could have run it."""

    seat: Seat | None = None
    inner: Ticket | None = None


class Fleet(Admission):
    """See :class:`Admission`. Workers may come and go at any time, told by another thread."""

    def __init__(self, here: Capacity) -> None:
        super().__init__(here)
        self._here = Seat(None, Admission(here))
        self._seats: dict[str, Seat] = {}
        self._hosts: dict[str, Counter[str]] = {}
        # By what decides who may do it: its kind. By kind: one node of it.
        self._kinds: dict[str, str] = {}
        self._samples: dict[str, Node] = {}
        self._able: dict[tuple[str, int], Mapping[Seat, None]] = {}
        self._line = _Line()
        self._lock = RLock()
        self._awaited_need: Need | None = None
        self._awaited_at: Seat | None = None
        # What was taken last: for the run that begins next.
        self.last_taken = SeatTicket(Need())

    def staff(self, workers: Iterable[Worker]) -> None:
        """From now on there are *workers*. Those that stay keep what they do."""
        with self._lock:
            now = {worker.address: worker for worker in workers}
            self._seats = {
                address: _renewed(self._seats[address], worker)
                if address in self._seats and _is_alike(self._seats[address].worker, worker)
                else Seat(
                    worker,
                    Admission(Capacity(worker.places, worker.memory_bytes)),
                    self._hosts.setdefault(worker.host, Counter()),
                )
                for address, worker in now.items()
            }
            self._able.clear()
            self._line = _Line()
            for seat in self._seats.values():
                self._line.put(seat)
            # Next to nothing runs on this machine, so it says little of how long all will take.
            here = self._here.admission.capacity
            places = sum(worker.places for worker in now.values()) or here.places
            memory = [worker.memory_bytes for worker in now.values()] or [here.memory_bytes]
            total = UNLIMITED if UNLIMITED in memory else sum(memory)
            self.capacity = FleetCapacity(places, total, min(memory))

    @property
    def workers(self) -> tuple[Worker, ...]:
        with self._lock:
            return tuple(seat.worker for seat in self._seats.values() if seat.worker is not None)

    def why_nowhere(self, node: Node) -> Mapping[str, str]:
        """By address, why a worker cannot run *node*."""
        return {worker.address: worker.differs(node) for worker in self.workers}

    def placed(self, need: Need, node: Node) -> Need:
        if not is_ours(node):
            return PlacedNeed(need.memory_bytes, need.pools, need.alone, HERE)
        told = json.dumps([node.environment, sorted(node.toolchain.items())])
        with self._lock:
            kind = self._kinds.setdefault(told, str(len(self._kinds)))
            self._samples.setdefault(kind, node)
        return PlacedNeed(need.memory_bytes, need.pools, need.alone, kind)

    @property
    def is_full(self) -> bool:
        with self._lock:
            return self._here.admission.is_full and next(self._line.with_room, None) is None

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return sum(seat.admission.memory_bytes for seat in (self._here, *self._seats.values()))

    def fits(self, need: Need) -> bool:
        with self._lock:
            able = self._able_to(need)
            return not able or self._first_that_fits(need) is not None

    def fits_awaited(self) -> bool:
        with self._lock:
            need, seat = self._awaited_need, self._awaited_at
            if need is None:
                return False
            if seat is None or seat not in self._able_to(need):
                self.wait_for(need)
                seat = self._awaited_at
            return seat is None or seat.fits_awaited(need)

    def wait_for(self, need: Need | None) -> None:
        with self._lock:
            if self._awaited_at is not None:
                self._awaited_at.admission.wait_for(None)
            able: Mapping[Seat, None] = {} if need is None else self._able_to(need)
            self._awaited_need = need
            self._awaited_at = next(self._in_line(able, self._line), None)
            if self._awaited_at is not None and need is not None:
                self._awaited_at.admission.wait_for(self._awaited_at.taken(need))

    def take(self, need: Need) -> Ticket:
        with self._lock:
            seat = self._first_that_fits(need)
            if seat is None:
                self.last_taken = SeatTicket(need)
            else:
                if seat.worker is not None:
                    seat.pools.update(need.pools)
                self.last_taken = SeatTicket(need, seat, seat.admission.take(seat.taken(need)))
                self._moved(seat)
            return self.last_taken

    def give_back(self, ticket: Ticket) -> None:
        assert isinstance(ticket, SeatTicket)
        with self._lock:
            if ticket.seat is not None and ticket.inner is not None:
                ticket.seat.admission.give_back(ticket.inner)
                if ticket.seat.worker is not None:
                    ticket.seat.pools.subtract(ticket.need.pools)
                self._moved(ticket.seat)

    def _moved(self, seat: Seat) -> None:
        """What is taken of *seat* has changed; one whose worker has gone stands in no line."""
        if seat in self._line:
            self._line.put(seat)

    def _first_that_fits(self, need: Need) -> Seat | None:
        """The least busy seat that *need* fits."""
        seats = self._in_line(self._able_to(need), self._line.with_room)
        return next((seat for seat in seats if seat.fits(need)), None)

    def _in_line(self, able: Mapping[Seat, None], seats: Iterable[Seat]) -> Iterator[Seat]:
        """Those of *seats* that are *able*; this machine stands in no line."""
        return iter(able) if self._here in able else (seat for seat in seats if seat in able)

    def _able_to(self, need: Need) -> Mapping[Seat, None]:
        """The seats that may run what has *need*; of those with too little memory only the largest, if all are so."""
        kind = need.kind if isinstance(need, PlacedNeed) else HERE
        if kind == HERE:
            return {self._here: None}
        if (kind, need.memory_bytes) not in self._able:
            sample = self._samples[kind]
            able = [seat for seat in self._seats.values() if seat.worker and not seat.worker.differs(sample)]
            memory = [seat.admission.capacity.memory_bytes for seat in able]
            least = min(need.memory_bytes, max(memory, default=0))
            enough = (seat for seat, has in zip(able, memory, strict=True) if has >= least)
            self._able[kind, need.memory_bytes] = dict.fromkeys(enough)
        return self._able[kind, need.memory_bytes]


def _share(seat: Seat) -> float:
    """How much of *seat* is taken: the least busy one is the first choice."""
    return seat.admission.runs / seat.admission.capacity.places


def _is_alike(before: Worker | None, worker: Worker) -> bool:
    return before is not None and (before.places, before.memory_bytes) == (worker.places, worker.memory_bytes)


def _renewed(seat: Seat, worker: Worker) -> Seat:
    """*seat* with what its worker says of itself now."""
    seat.worker = worker
    return seat
