"""Who may run beside whom: every run takes a place, memory, and maybe devices; what runs together never takes more than
there is.

One rule keeps a run that needs much from waiting for ever: the first that does not fit is waited for, and what begins
meanwhile must leave room for it. So it begins at the latest when all that ran before it began to wait has ended,
whatever follows; no guess of how long anything takes is needed for that.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from winml_dag.engine.machine import memory_for_runs

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node

UNLIMITED = sys.maxsize
# Needs are rounded up to so many parts of all memory: then there are few different ones, however many runs.
_GRAINS = 256


@dataclass(frozen=True)
class Need:
    """What one run takes. ``pools``: devices by name, of each of which there is one. ``alone``: nothing beside it."""

    memory_bytes: int = 0
    pools: tuple[str, ...] = ()
    alone: bool = False


def rounded(memory_bytes: int, all_bytes: int) -> int:
    """*memory_bytes* as they are counted where there are *all_bytes*."""
    grain = max(1, all_bytes // _GRAINS)
    return -(-memory_bytes // grain) * grain


@dataclass(frozen=True)
class Capacity:
    """What there is: places, and bytes of memory."""

    places: int
    memory_bytes: int = UNLIMITED

    @classmethod
    def of_this_machine(cls, places: int, memory_bytes: int | None) -> Capacity:
        """*memory_bytes* None: what this machine has, less a reserve."""
        return cls(places, memory_for_runs() if memory_bytes is None else memory_bytes)

    @property
    def counts_memory(self) -> bool:
        """Whether it matters how much memory a run takes: not where it may take any, nor where it is alone anyway."""
        return self.places > 1 and self.memory_bytes != UNLIMITED

    def taken(self, need: Need) -> Need:
        """*need* as it is counted here: rounded, and alone where it is more than there is, which is all that can be
        done for it.
        """
        if not self.counts_memory:
            return Need(0, need.pools, need.alone)
        counted = min(rounded(need.memory_bytes, self.memory_bytes), self.memory_bytes)
        return Need(counted, need.pools, need.alone or need.memory_bytes > self.memory_bytes)


@dataclass
class _Sum:
    """What several runs take together."""

    runs: int = 0
    alone: int = 0
    memory_bytes: int = 0
    pools: Counter[str] = field(default_factory=Counter)

    def add(self, need: Need, sign: int = 1) -> None:
        self.runs += sign
        self.alone += sign * need.alone
        self.memory_bytes += sign * need.memory_bytes
        for pool in need.pools:
            self.pools[pool] += sign

    def leaves_room(self, need: Need, capacity: Capacity) -> bool:
        if self.runs == 0:
            return True
        return (
            self.runs < capacity.places
            and not need.alone
            and not self.alone
            and self.memory_bytes + need.memory_bytes <= capacity.memory_bytes
            and not any(self.pools[pool] for pool in need.pools)
        )


@dataclass(eq=False)
class Ticket:
    """What a run holds while it goes on."""

    need: Need


class Admission:
    """What is taken of a capacity just now. Needs are as :meth:`Capacity.taken` has them."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self._all = _Sum()
        # Of those that began while one waited, and still run, with that one itself.
        self._beside = _Sum()
        self._passed: set[Ticket] = set()
        self._awaited: Need | None = None

    def placed(self, need: Need, node: Node) -> Need:  # noqa: ARG002 - there is one machine, and all run on it
        """*need* with where *node* may run."""
        return need

    @property
    def runs(self) -> int:
        """How many go on."""
        return self._all.runs

    @property
    def is_full(self) -> bool:
        """Whether nothing fits, whatever it needs."""
        return self._all.runs >= self.capacity.places

    @property
    def memory_bytes(self) -> int:
        """What runs just now takes of the memory; from any thread."""
        return self._all.memory_bytes

    def fits(self, need: Need) -> bool:
        """Whether a run may begin now, which is not the one that is waited for."""
        if not self._all.leaves_room(need, self.capacity):
            return False
        return self._awaited is None or self._beside.leaves_room(need, self.capacity)

    def fits_awaited(self) -> bool:
        """Whether the one that is waited for may begin now."""
        return self._awaited is not None and self._all.leaves_room(self._awaited, self.capacity)

    def wait_for(self, need: Need | None) -> None:
        """From now on what begins leaves room for *need*; None: nothing is waited for any more."""
        self._awaited = need
        self._passed.clear()
        self._beside = _Sum()
        if need is not None:
            self._beside.add(need)

    def take(self, need: Need) -> Ticket:
        """A run begins."""
        ticket = Ticket(need)
        self._all.add(need)
        if self._awaited is not None:
            self._passed.add(ticket)
            self._beside.add(need)
        return ticket

    def give_back(self, ticket: Ticket) -> None:
        """A run has ended."""
        self._all.add(ticket.need, -1)
        if ticket in self._passed:
            self._passed.remove(ticket)
            self._beside.add(ticket.need, -1)
