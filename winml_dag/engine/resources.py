"""What a run takes, what is available, and which of the ready runs starts next.

Concurrent runs never take more slots, memory and devices than there are. Of the runs that fit, partitions go in order,
so that one is completed after the other, until a chain of stages is so long that it has to start. A run that does not
fit when it is next gets a reservation: runs that start meanwhile must fit next to it, so it starts no later than when
everything that already ran has ended. That needs no estimate of how long anything takes.
"""

from __future__ import annotations

import heapq
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node

T = TypeVar("T")

UNLIMITED = sys.maxsize
# Requests are rounded up to multiples of this fraction of all memory, so that there are few distinct ones however many
# runs there are.
_GRAINS = 256
# A chain has to start when its length reaches this share of the time that all remaining work takes in all slots. With 1
# it would start at the last moment if every estimate were right, and two such chains in one slot would start too late.
# Measured on a sweep of 136 builds in 2 to 32 slots: with 1/2 it takes up to 8% longer than the optimum, with 1/3 up to
# 2%, and with 1/4 the first builds finish much later.
_SHARE = 1 / 3
_GIB = 1 << 30
# Reserved for the system, for the user's other programs, and for the file cache, without which everything is slow.
_KEPT_SHARE = 10
_KEPT_LEAST, _KEPT_MOST = _GIB, 4 * _GIB


@dataclass(frozen=True)
class ResourceRequest:
    """What one run takes.

    ``pools``: devices by name; there is one of each. ``alone``: no other run may run at the same time.
    """

    memory_bytes: int = 0
    pools: tuple[str, ...] = ()
    alone: bool = False


def rounded(memory_bytes: int, all_bytes: int) -> int:
    """*memory_bytes* rounded up to the granularity of *all_bytes*."""
    grain = max(1, all_bytes // _GRAINS)
    return -(-memory_bytes // grain) * grain


@dataclass(frozen=True)
class Capacity:
    """Available slots, of which each run takes one, and bytes of memory."""

    slots: int
    memory_bytes: int = UNLIMITED

    @classmethod
    def of_this_machine(cls, slots: int, memory_bytes: int | None) -> Capacity:
        """*memory_bytes* None: the memory of this machine, less a reserve."""
        return cls(slots, memory_for_runs() if memory_bytes is None else memory_bytes)

    @property
    def counts_memory(self) -> bool:
        """Whether memory limits anything: not if it is unlimited, nor with a single slot."""
        return self.slots > 1 and self.memory_bytes != UNLIMITED

    def taken(self, request: ResourceRequest) -> ResourceRequest:
        """*request* as it is counted here: memory rounded up, and ``alone`` if it exceeds the capacity.

        Running alone is the best that can be done for a request that does not fit.
        """
        if not self.counts_memory:
            return ResourceRequest(0, request.pools, request.alone)
        counted = min(rounded(request.memory_bytes, self.memory_bytes), self.memory_bytes)
        return ResourceRequest(counted, request.pools, request.alone or request.memory_bytes > self.memory_bytes)


@dataclass
class _Sum:
    """What several runs take together."""

    runs: int = 0
    alone: int = 0
    memory_bytes: int = 0
    pools: Counter[str] = field(default_factory=Counter)

    def add(self, request: ResourceRequest, sign: int = 1) -> None:
        self.runs += sign
        self.alone += sign * request.alone
        self.memory_bytes += sign * request.memory_bytes
        for pool in request.pools:
            self.pools[pool] += sign

    def leaves_room(self, request: ResourceRequest, capacity: Capacity) -> bool:
        return self.runs == 0 or (
            self.runs < capacity.slots
            and not request.alone
            and not self.alone
            and self.memory_bytes + request.memory_bytes <= capacity.memory_bytes
            and not any(self.pools[pool] for pool in request.pools)
        )


@dataclass(eq=False)
class Allocation:
    """What a run holds while it runs. ``beside``: the sum that it was added to if it started next to a reservation."""

    request: ResourceRequest
    beside: _Sum | None = None


class Admission:
    """The part of a capacity that is in use. Requests are as :meth:`Capacity.taken` returns them."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._all = _Sum()
        # The reservation, and the sum of it and of all runs that started next to it and still run.
        self._reserved: ResourceRequest | None = None
        self._beside = _Sum()

    def placed(self, request: ResourceRequest, node: Node) -> ResourceRequest:  # noqa: ARG002 - all run on one machine
        """*request* with the workers that may run *node*."""
        return request

    @property
    def is_full(self) -> bool:
        """Whether nothing fits, whatever its request."""
        return self._all.runs >= self.capacity.slots

    @property
    def memory_bytes(self) -> int:
        """The memory that current runs take; callable from any thread."""
        return self._all.memory_bytes

    def fits(self, request: ResourceRequest) -> bool:
        """Whether a run without the reservation may start now."""
        if not self._all.leaves_room(request, self.capacity):
            return False
        return self._reserved is None or self._beside.leaves_room(request, self.capacity)

    def fits_reserved(self) -> bool:
        """Whether the run with the reservation may start now."""
        return self._reserved is not None and self._all.leaves_room(self._reserved, self.capacity)

    def reserve(self, request: ResourceRequest | None) -> None:
        """Make later runs leave room for *request*; None: for nothing."""
        self._reserved = request
        self._beside = _Sum()
        if request is not None:
            self._beside.add(request)

    def take(self, request: ResourceRequest) -> Allocation:
        """A run starts."""
        allocation = Allocation(request, self._beside)
        self._all.add(request)
        self._beside.add(request)
        return allocation

    def give_back(self, allocation: Allocation) -> None:
        """A run has ended."""
        self._all.add(allocation.request, -1)
        if allocation.beside is not None:
            allocation.beside.add(allocation.request, -1)


@dataclass(eq=False)
class _Entry(Generic[T]):
    """A run that is ready to start. ``chain``: seconds from its start to the end of everything that depends on it."""

    node_id: str
    request: ResourceRequest
    item: T
    chain: float


# Entries with a unique key each. One that has started is removed when it reaches the top.
_Heap: TypeAlias = "list[tuple[tuple[float, int, int], _Entry[T]]]"


class ReadyQueue(Generic[T]):
    """Runs that are ready to start, each with an item that identifies it.

    Runs with equal requests have two heaps, in order of partitions and by chain, so the next one is found without a
    search through all.

    *order*: the position of each id; without one, runs start as they arrive. *chains*: the length of the longest chain
    that starts with the id; without one, only the order counts.
    """

    def __init__(self, admission: Admission, order: Mapping[str, int], chains: Mapping[str, float]) -> None:
        self._admission = admission
        self._order = order
        self._chains = chains
        self._heaps: dict[ResourceRequest, tuple[_Heap[T], _Heap[T]]] = {}
        self._entries: dict[str, _Entry[T]] = {}
        self._reserved: _Entry[T] | None = None
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[T]:
        return [entry.item for entry in self._entries.values()]

    def add(self, node_id: str, request: ResourceRequest, item: T) -> None:
        self._arrived += 1
        counted = self._admission.capacity.taken(request)
        entry = self._entries[node_id] = _Entry(node_id, counted, item, self._chains.get(node_id, 0.0))
        in_order, by_chain = self._heaps.setdefault(counted, ([], []))
        rank = (self._order.get(node_id, 0), self._arrived)
        heapq.heappush(in_order, ((0.0, *rank), entry))
        heapq.heappush(by_chain, ((-entry.chain, *rank), entry))

    def remove(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            if (entry := self._entries.get(node_id)) is not None:
                self._take_out(entry)

    def clear(self) -> None:
        self.remove(tuple(self._entries))

    def next(self, work_left_seconds: float) -> tuple[T, ResourceRequest] | None:
        """The item that starts next, and what it takes; None if nothing fits. The item is removed from the queue.

        *work_left_seconds*: the sum over everything that has not ended, as if run sequentially.
        """
        if self._admission.is_full or not self._entries:
            return None
        hurry = work_left_seconds / self._admission.capacity.slots * _SHARE
        chosen = self._reserved if self._admission.fits_reserved() else self._choose(hurry)
        if chosen is None:
            return None
        self._take_out(chosen)
        return chosen.item, chosen.request

    def _choose(self, hurry: float) -> _Entry[T] | None:
        best = self._best(self._heaps, hurry)
        if best is None or self._admission.fits(best.request):
            return best
        if self._reserved is None:
            self._reserved = best
            self._admission.reserve(best.request)
        return self._best([request for request in self._heaps if self._admission.fits(request)], hurry)

    def _best(self, requests: Iterable[ResourceRequest], hurry: float) -> _Entry[T] | None:
        """Among entries with one of *requests*, the longest chain if it has to start, else the first in order."""
        heaps = [self._heaps[request] for request in requests]
        if self._chains and self._admission.capacity.slots > 1:
            longest = self._first(by_chain for _, by_chain in heaps)
            if longest is not None and longest.chain >= hurry:
                return longest
        return self._first(in_order for in_order, _ in heaps)

    def _first(self, heaps: Iterable[_Heap[T]]) -> _Entry[T] | None:
        """The entry with the least key that is waiting without a reservation."""
        tops = []
        for heap in heaps:
            while heap and (heap[0][1] is self._reserved or self._entries.get(heap[0][1].node_id) is not heap[0][1]):
                heapq.heappop(heap)
            if heap:
                tops.append(heap[0])
        return min(tops)[1] if tops else None

    def _take_out(self, entry: _Entry[T]) -> None:
        del self._entries[entry.node_id]
        if entry is self._reserved:
            self._reserved = None
            self._admission.reserve(None)


def memory_for_runs() -> int:
    """The bytes that all runs together may take: available memory less a reserve.

    The reserve is a tenth, at least 1 and at most 4 GiB, but no more than half.
    """
    there = min([physical_memory_bytes(), *container_limits()])
    kept = min(max(there // _KEPT_SHARE, _KEPT_LEAST), _KEPT_MOST, there // 2)
    return there - kept


def physical_memory_bytes() -> int:
    """The installed memory, whether or not this process may use all of it."""
    if sys.platform == "win32":
        found = _windows_memory_bytes()
    else:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def container_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """The memory limits of the control groups of this process, on Linux; a container is such a group.

    A group is also limited by its parent groups.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from _limits(root / "memory", path, "memory.limit_in_bytes")
        elif not controllers:
            yield from _limits(root, path, "memory.max")


def _limits(root: Path, path: str, name: str) -> Iterator[int]:
    group = root / path.strip("/")
    # In a container the path may be the one outside of it; its own group is then the root.
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max" is not a number
            yield int((folder / name).read_text(encoding="ascii"))
        if folder == root:
            return


def _windows_memory_bytes() -> int:
    import ctypes

    # MEMORYSTATUSEX: its size, the load in percent, the total bytes, and six more numbers.
    layout = struct.Struct("=IIQ6Q")
    status = ctypes.create_string_buffer(layout.pack(layout.size, *[0] * 8), layout.size)
    library: Any = ctypes
    return int(layout.unpack(status)[2]) if library.WinDLL("kernel32").GlobalMemoryStatusEx(status) else 0
