"""How long the rest of a run takes: at least the longest chain that is left, and all work divided by the places.

Playing the rest through with the scheduler's own rule was nearer to the truth where memory is short, and took 60 lines;
estimates of single stages are off by more than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from winml_dag.engine.admission import Admission, Capacity
from winml_dag.engine.graph import Graph


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of a graph, from its first node to its last; ``seconds`` is the sum of theirs."""

    ids: tuple[str, ...]
    seconds: float


def chains(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """By id, how long the longest chain is that begins with a node, its own time included. What *seconds* does not have
    takes no time.
    """
    behind: dict[str, float] = {}
    found: dict[str, float] = {}
    for node in reversed(graph.nodes):
        length = found[node.id] = seconds.get(node.id, 0.0) + behind.get(node.id, 0.0)
        for maker in graph.needs(node):
            if length > behind.get(maker.id, 0.0):
                behind[maker.id] = length
    return found


def critical_path(graph: Graph, seconds: Mapping[str, float]) -> CriticalPath:
    """The chain that took longest. Nodes in it that took no time, such as reused ones, are left out."""
    lengths = chains(graph, seconds)
    if not lengths:
        return CriticalPath((), 0.0)
    path: list[str] = []
    # The first of several that are as long: which one it is must not depend on anything but the graph.
    at: str | None = max((node.id for node in graph.nodes), key=lengths.__getitem__)
    while at is not None:
        path.append(at)
        at = max((reader.id for reader in graph.readers.get(at, ())), key=lengths.__getitem__, default=None)
    taken = tuple(node_id for node_id in path if seconds.get(node_id, 0.0) > 0)
    return CriticalPath(taken, sum(seconds[node_id] for node_id in taken))


def seconds_left(graph: Graph, seconds: Mapping[str, float], places: int) -> float:
    """How long what *seconds* has, by id, takes in so many *places*."""
    return max(sum(seconds.values()) / places, max(chains(graph, seconds).values(), default=0.0))


@dataclass(frozen=True)
class Work:
    """A graph with the seconds that each of its nodes is expected to take, by id.

    ``stage_of``: the stage of each node whose seconds are only those usual of its stage; ``never_seen``: stages of
    which not even that is known.
    """

    graph: Graph
    seconds: Mapping[str, float]
    stage_of: Mapping[str, str] = field(default_factory=dict)
    never_seen: frozenset[str] = frozenset()


class Eta:
    """What is left of a run that goes on: its scheduler tells it what begins and ends, any thread may ask.

    Seconds that are only those usual of a stage are corrected by what this run has shown of the stage: on a machine
    that is twice as fast, or with models that are twice as large, they are wrong by the same factor for all of them.
    """

    def __init__(self, work: Work, admission: Admission, clock: Callable[[], float] = time.monotonic) -> None:
        self._work = work
        self._admission = admission
        self._clock = clock
        self._ended: set[str] = set()
        self._running: dict[str, float] = {}
        self._left = sum(work.seconds.values())
        # By stage, what runs of it took that were only guessed at, and what they were expected to.
        self._took: dict[str, tuple[float, float]] = {}

    @property
    def capacity(self) -> Capacity:
        return self._admission.capacity

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
        """It has ended, and what needs it never begins."""
        lost = [node_id]
        while lost:
            self.ended(last := lost.pop())
            readers = (reader.id for reader in self._work.graph.readers.get(last, ()))
            lost += [reader for reader in readers if reader not in self._ended]

    def seconds_left(self) -> float | None:
        """None as long as most of the work that is left is of stages that nobody has seen run."""
        # Copied at once each: the scheduler's thread goes on meanwhile.
        ended, running, took, now = self._ended.copy(), self._running.copy(), self._took.copy(), self._clock()
        factors = {stage: seconds / expected for stage, (seconds, expected) in took.items()}
        stage_of = self._work.stage_of
        left = {
            node_id: seconds * factors.get(stage_of.get(node_id, ""), 1.0)
            for node_id, seconds in self._work.seconds.items()
            if node_id not in ended
        }
        unknown = self._work.never_seen - factors.keys()
        guessed = sum(seconds for node_id, seconds in left.items() if stage_of.get(node_id) in unknown)
        if guessed > sum(left.values()) / 2:
            return None
        for node_id, since in running.items():
            # What runs for longer than was expected may end at any moment.
            left[node_id] = max(0.0, left.get(node_id, 0.0) - (now - since))
        return seconds_left(self._work.graph, left, self.capacity.places)
