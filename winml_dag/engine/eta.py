"""What a node will take, in seconds and in bytes, and how long all that is left will.

A node takes what it did last time, else what its stage does, else what is declared. The rest of a run takes at least
the longest chain that is left, and all work divided by the slots: estimates of single stages are off by more than what
playing it through would tell better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from winml_dag.canonical import json_hash
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Admission, Capacity, ResourceRequest
from winml_dag.engine.stage import Node
from winml_dag.store.records import Record
from winml_dag.store.store import Store

# Of a stage that nobody has seen run. That it counts at all matters more than how much: a chain has a length then.
UNKNOWN_SECONDS = 2.0
# As many records of a stage as say what is usual of it.
_RECORDS = 50
# Inputs of up to this many times the size, or as small a part, count as similar: peaks follow the size of a model.
_SIMILAR = 2.0
# Two runs of the same work do not peak at the same byte.
_MARGIN = 1.1


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


@dataclass(frozen=True)
class _Peak:
    """What a run took at its peak, and how much it had read."""

    memory_bytes: int
    input_bytes: int

    def is_like(self, input_bytes: int) -> bool:
        less, more = sorted((max(1, self.input_bytes), max(1, input_bytes)))
        return more <= _SIMILAR * less


@dataclass(frozen=True)
class _Usual:
    """What the newest records of a stage tell."""

    seconds: float
    peaks: tuple[_Peak, ...]
    is_known: bool = True


class CostModel:
    """What the records of *store* let expect of runs in *capacity*; those of a stage are read once, when the first node
    of it asks.
    """

    def __init__(self, store: Store, capacity: Capacity) -> None:
        self._store = store
        self._counts_memory = capacity.counts_memory
        self._stages: dict[str, _Usual] = {}

    def seconds(self, node: Node, last: Record | None) -> float:
        """*last*: what is remembered of this very node."""
        return self._usual(node).seconds if last is None else last.elapsed_seconds

    def learn(self, node: Node, record: Record) -> bool:
        """Take the peak of a run that has just ended into account, for others of its stage. Whether that is much more
        than any was before, so that those which wait need another look.
        """
        peak = _peak(record) if self._counts_memory and not node.stage.works_in_place else None
        if peak is None:
            return False
        usual = self._usual(node)
        before = max((each.memory_bytes for each in usual.peaks), default=0)
        same = [each for each in usual.peaks if each.input_bytes == peak.input_bytes]
        # Of runs that read equally much only the largest says anything: thousands of them must not all be looked at.
        if all(each.memory_bytes < peak.memory_bytes for each in same):
            others = (each for each in usual.peaks if each.input_bytes != peak.input_bytes)
            self._stages[node.stage.name] = replace(usual, peaks=(*others, peak))
        return peak.memory_bytes > before * _MARGIN

    def has_seen(self, node: Node) -> bool:
        """Whether there is any record of its stage."""
        return self._usual(node).is_known

    def request(self, node: Node, last: Record | None, input_bytes: int) -> ResourceRequest:
        """*input_bytes*: as much as it will read."""
        memory = self._memory_bytes(node, last, input_bytes) if self._counts_memory else 0
        return ResourceRequest(memory, node.pools, node.stage.alone)

    def _memory_bytes(self, node: Node, last: Record | None, input_bytes: int) -> int:
        if (peak := _peak(last)) is not None and peak.is_like(input_bytes):
            return round(peak.memory_bytes * _MARGIN)
        like_it = [peak.memory_bytes for peak in self._usual(node).peaks if peak.is_like(input_bytes)]
        return round(max(like_it) * _MARGIN) if like_it else node.stage.memory.of(input_bytes)

    def _usual(self, node: Node) -> _Usual:
        # What a recipe declares itself is one node: records of others with its name say nothing of it.
        if node.stage.works_in_place:
            return _NOTHING
        name = node.stage.name
        if name not in self._stages:
            records = self._store.records_of(name, _RECORDS)
            seconds = median([record.elapsed_seconds for record in records]) if records else UNKNOWN_SECONDS
            peaks = (peak for record in records if (peak := _peak(record)) is not None)
            self._stages[name] = _Usual(seconds, tuple(peaks), bool(records))
        return self._stages[name]


_NOTHING = _Usual(UNKNOWN_SECONDS, (), is_known=False)


def _peak(record: Record | None) -> _Peak | None:
    peak = None if record is None else record.metrics.get("peak_memory_bytes")
    if record is None or not isinstance(peak, int) or isinstance(peak, bool):
        return None
    artifacts = (record.input_artifact(slot) for slot in record.key_inputs.inputs)
    return _Peak(peak, sum(artifact.size for artifact in artifacts if artifact is not None))


def repeats(graph: Graph) -> frozenset[str]:
    """The ids of nodes that turn out to do the work of one before them, as long as outputs that usually stay as they
    are do so: they will be found, and take no time.
    """
    if not any(node.stage.likely_unchanged for node in graph.nodes):
        return frozenset()
    identities: dict[str, str] = {}
    seen: set[str] = set()
    found: list[str] = []
    for node in graph.nodes:
        inputs = {slot: identities.get(name, name) for slot, name in node.inputs.items()}
        identity = json_hash([node.stage.name, node.stage.version, node.config, inputs, node.toolchain])
        if identity in seen:
            found.append(node.id)
        seen.add(identity)
        for slot in node.stage.outputs:
            as_before = inputs.get(slot) if slot in node.stage.likely_unchanged else None
            identities[node.output(slot)] = as_before or f"{identity}.{slot}"
    return frozenset(found)


def expected_work(
    graph: Graph,
    names: Mapping[str, str],
    lasts: Mapping[str, Record],
    costs: CostModel,
) -> Work:
    """What each node would take if it ran; *names*: by id, what its result is remembered under, as *lasts*."""
    free = repeats(graph)
    seconds: dict[str, float] = {}
    stage_of: dict[str, str] = {}
    never_seen: set[str] = set()
    for node in graph.nodes:
        last = lasts.get(names[node.id])
        seconds[node.id] = 0.0 if node.id in free else costs.seconds(node, last)
        if last is None:
            stage_of[node.id] = node.stage.name
            if not costs.has_seen(node):
                never_seen.add(node.stage.name)
    return Work(graph, seconds, stage_of, frozenset(never_seen))
