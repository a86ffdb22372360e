"""Which of the runs that could begin does begin: a heap for each kind of need, never a look at all that wait.

With several places two orders are at odds. The longest chain first ends earliest as a whole, but carries on everything
at once and completes nothing for long; part by part completes one thing after the other, and may be left with a long
chain and idle places in the end. So it goes part by part, until a chain is so long that it has to begin: then it does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from winml_dag.engine.admission import Admission, Need

T = TypeVar("T")

# A chain has to begin when it is as long as this share of what all work that is left takes on all places. With 1 it
# would begin at the last moment if every estimate were right, and two such chains in one place too late. Measured on a
# sweep of 136 builds in 2 to 32 places: with 1/2 it takes up to 8% longer than is possible, with 1/3 up to 2%, and with
# 1/4 the first builds are finished much later.
_SHARE = 1 / 3


@dataclass(eq=False)
class _Entry(Generic[T]):
    """A run that could begin. ``place``: in the order of parts; ``chain``: seconds from its beginning to the end."""

    node_id: str
    need: Need
    item: T
    place: tuple[int, int]
    chain: float
    here: bool = True


@dataclass
class _Kind(Generic[T]):
    """Runs of equal need, by place and by chain; one that has left one of the heaps is dropped from the other later."""

    by_place: list[tuple[tuple[int, int], _Entry[T]]] = field(default_factory=list)
    by_chain: list[tuple[float, tuple[int, int], _Entry[T]]] = field(default_factory=list)

    def add(self, entry: _Entry[T]) -> None:
        heapq.heappush(self.by_place, (entry.place, entry))
        heapq.heappush(self.by_chain, (-entry.chain, entry.place, entry))

    def first(self) -> _Entry[T] | None:
        while self.by_place and not self.by_place[0][-1].here:
            heapq.heappop(self.by_place)
        return self.by_place[0][-1] if self.by_place else None

    def longest(self) -> _Entry[T] | None:
        while self.by_chain and not self.by_chain[0][-1].here:
            heapq.heappop(self.by_chain)
        return self.by_chain[0][-1] if self.by_chain else None


class Dispatch(Generic[T]):
    """Runs that could begin, each with an item to tell it by.

    *order*: the place of each id among all; without one, they go as they come. *chains*: how long the longest chain is
    that begins with it; without one, order is all that counts.
    """

    def __init__(self, admission: Admission, order: Mapping[str, int], chains: Mapping[str, float]) -> None:
        self._admission = admission
        self._order = order
        self._chains = chains
        self._kinds: dict[Need, _Kind[T]] = {}
        self._entries: dict[str, _Entry[T]] = {}
        self._awaited: _Entry[T] | None = None
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[T]:
        return [entry.item for entry in self._entries.values()]

    def add(self, node_id: str, need: Need, item: T) -> None:
        self._arrived += 1
        counted = self._admission.capacity.taken(need)
        place = (self._order.get(node_id, 0), self._arrived)
        entry = self._entries[node_id] = _Entry(node_id, counted, item, place, self._chains.get(node_id, 0.0))
        self._kinds.setdefault(counted, _Kind()).add(entry)

    def remove(self, node_ids: Iterable[str]) -> None:
        for node_id in node_ids:
            if (entry := self._entries.get(node_id)) is not None:
                self._take_out(entry)

    def clear(self) -> None:
        self.remove(tuple(self._entries))

    def next(self, work_left_seconds: float) -> tuple[T, Need] | None:
        """The item that shall begin now, and what it takes; None where nothing fits. It is no longer here then.

        *work_left_seconds*: of all that has not ended, one after the other.
        """
        if self._admission.is_full or not self._entries:
            return None
        hurry = work_left_seconds / self._admission.capacity.places * _SHARE
        chosen = self._awaited if self._admission.fits_awaited() else self._choose(hurry)
        if chosen is None:
            return None
        self._take_out(chosen)
        return chosen.item, chosen.need

    def _choose(self, hurry: float) -> _Entry[T] | None:
        best = self._best(self._kinds, hurry)
        if best is None or self._admission.fits(best.need):
            return best
        if self._awaited is None:
            best.here = False
            self._awaited = best
            self._admission.wait_for(best.need)
        return self._best([need for need in self._kinds if self._admission.fits(need)], hurry)

    def _best(self, needs: Iterable[Need], hurry: float) -> _Entry[T] | None:
        """Of all that need one of *needs*, the longest chain if it has to begin, else the first in order."""
        kinds = [self._kinds[need] for need in needs]
        if self._chains and self._admission.capacity.places > 1:
            longest = [found for kind in kinds if (found := kind.longest()) is not None]
            best = min(longest, key=lambda entry: (-entry.chain, entry.place), default=None)
            if best is not None and best.chain >= hurry:
                return best
        firsts = [found for kind in kinds if (found := kind.first()) is not None]
        return min(firsts, key=lambda entry: entry.place, default=None)

    def _take_out(self, entry: _Entry[T]) -> None:
        entry.here = False
        del self._entries[entry.node_id]
        if entry is self._awaited:
            self._awaited = None
            self._admission.wait_for(None)
