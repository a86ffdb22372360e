"""How long the rest of a run will take: its own rule of what begins when, played through with what is expected.

The sum of what is left, divided by places, is too little as soon as something waits for something, or memory is short.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from winml_dag.engine.admission import Admission, Capacity, Need, Ticket
from winml_dag.engine.criticalpath import chains
from winml_dag.engine.dispatch import Dispatch
from winml_dag.engine.graph import Graph


@dataclass(frozen=True)
class Work:
    """A graph with what its nodes are expected to take, by id: ``seconds`` (none: no time) and ``needs``.

    ``order``: as the dispatch of a run has it. ``stage_of``: the stage of each node whose seconds are only what is
    usual of that; ``never_seen``: stages of which not even that is known.
    """

    graph: Graph
    seconds: Mapping[str, float]
    needs: Mapping[str, Need]
    order: Mapping[str, int]
    stage_of: Mapping[str, str] = field(default_factory=dict)
    never_seen: frozenset[str] = frozenset()


def seconds_left(work: Work, capacity: Capacity, ended: frozenset[str], running: Mapping[str, float]) -> float:
    """How long it will be until all has ended; *running*: by id, for how many seconds that has gone on already.

    What runs for longer than was expected is taken to end now: there is nothing better to go by.
    """
    return _Simulation(work, capacity, ended).run(running)


class _Simulation:
    """A run in which nothing runs but the clock."""

    def __init__(self, work: Work, capacity: Capacity, ended: frozenset[str]) -> None:
        self._work = work
        self._admission = Admission(capacity)
        left = {node.id: work.seconds.get(node.id, 0.0) for node in work.graph.nodes if node.id not in ended}
        self._dispatch: Dispatch[str] = Dispatch(self._admission, work.order, chains(work.graph, left))
        self._left = sum(left.values())
        self._seconds = left
        self._waits: dict[str, int] = {}
        self._readers: dict[str, list[str]] = {}
        self._ends: list[tuple[float, int, str, Ticket]] = []
        self._now = 0.0
        for node in work.graph.nodes:
            if node.id in ended:
                continue
            makers = [maker.id for maker in work.graph.needs(node) if maker.id not in ended]
            self._waits[node.id] = len(makers)
            for maker in makers:
                self._readers.setdefault(maker, []).append(node.id)

    def run(self, running: Mapping[str, float]) -> float:
        ready = [node_id for node_id, number in self._waits.items() if number == 0 and node_id not in running]
        for node_id, passed in running.items():
            # One that is said to run already waits for nothing, whatever is said of its makers.
            if self._waits.pop(node_id, None) is not None:
                self._begin(node_id, self._need(node_id), max(0.0, self._seconds[node_id] - passed))
        for node_id in ready:
            self._ready(node_id)
        self._fill()
        while self._ends:
            self._now, _, node_id, ticket = heapq.heappop(self._ends)
            self._admission.give_back(ticket)
            for reader in self._end(node_id):
                self._ready(reader)
            self._fill()
        return self._now

    def _need(self, node_id: str) -> Need:
        return self._work.needs.get(node_id, Need())

    def _ready(self, node_id: str) -> None:
        """What takes no time ends as soon as it could begin, and what stands on it with it."""
        ready = [node_id]
        while ready:
            node_id = ready.pop()
            if self._seconds[node_id] > 0:
                self._dispatch.add(node_id, self._need(node_id), node_id)
            else:
                ready += self._end(node_id)

    def _begin(self, node_id: str, need: Need, seconds: float) -> None:
        ticket = self._admission.take(need)
        heapq.heappush(self._ends, (self._now + seconds, len(self._ends), node_id, ticket))

    def _end(self, node_id: str) -> list[str]:
        """The readers of *node_id* that wait for nothing any more."""
        self._left -= self._seconds[node_id]
        readers = [reader for reader in self._readers.get(node_id, ()) if reader in self._waits]
        for reader in readers:
            self._waits[reader] -= 1
        return [reader for reader in readers if self._waits[reader] == 0]

    def _fill(self) -> None:
        while (found := self._dispatch.next(self._left)) is not None:
            self._begin(found[0], found[1], self._seconds[found[0]])


class Forecast:
    """What is left of a run that goes on: told of it by its scheduler, asked from any thread.

    What was only known as usual of a stage is corrected by what this run has shown of the stage: on a machine that is
    twice as fast, or with models that are twice as large, the usual is wrong by the same factor for all of them.
    """

    def __init__(self, work: Work, admission: Admission, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = admission.capacity
        self._work = work
        self._admission = admission
        self._clock = clock
        self._ended: set[str] = set()
        self._running: dict[str, float] = {}
        self._left = sum(work.seconds.values())
        # By stage, what runs of it took that were only guessed at, and what they were expected to.
        self._took: dict[str, tuple[float, float]] = {}

    @property
    def work_left_seconds(self) -> float:
        """Of all that has not ended, one after the other."""
        return self._left

    @property
    def memory_bytes(self) -> int:
        """What the runs of just now are expected to take."""
        return self._admission.memory_bytes

    def began(self, node_id: str) -> None:
        self._running[node_id] = self._clock()

    def ended(self, node_id: str) -> None:
        expected = self._work.seconds.get(node_id, 0.0)
        since, stage = self._running.pop(node_id, None), self._work.stage_of.get(node_id)
        if since is not None and stage is not None and expected > 0:
            before = self._took.get(stage, (0.0, 0.0))
            self._took[stage] = before[0] + self._clock() - since, before[1] + expected
        if node_id not in self._ended:
            self._ended.add(node_id)
            self._left = max(0.0, self._left - expected)

    def failed(self, node_id: str) -> None:
        """It has ended, and what stands on it will never begin."""
        lost = [node_id]
        while lost:
            self.ended(last := lost.pop())
            readers = (reader.id for reader in self._work.graph.readers.get(last, ()))
            lost += [reader for reader in readers if reader not in self._ended]

    def seconds_left(self) -> float | None:
        """None as long as most of the work that is left is of stages that nobody has seen run. Costs some milliseconds
        for a thousand nodes: nothing to ask for with every frame.
        """
        # Copied at once each: the scheduler's thread goes on meanwhile.
        ended, running, took, now = (
            frozenset(self._ended.copy()),
            self._running.copy(),
            self._took.copy(),
            self._clock(),
        )
        factors = {stage: seconds / expected for stage, (seconds, expected) in took.items()}
        left = {
            node_id: seconds * factors.get(self._work.stage_of.get(node_id, ""), 1.0)
            for node_id, seconds in self._work.seconds.items()
            if node_id not in ended
        }
        unknown = self._work.never_seen - factors.keys()
        guessed = sum(seconds for node_id, seconds in left.items() if self._work.stage_of.get(node_id) in unknown)
        if guessed > sum(left.values()) / 2:
            return None
        passed = {node_id: now - since for node_id, since in running.items()}
        return seconds_left(replace(self._work, seconds=left), self.capacity, ended, passed)
