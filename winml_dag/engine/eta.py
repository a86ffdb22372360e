"""Estimates of a node's time and memory, and of the remaining time of a run.

A node's estimate is that of its last run, else the usual value of its stage, else the declared one. The rest of a run
takes at least the longest remaining chain, and at least all work divided by the slots. Simulating the schedule would
not help: the error of single estimates is larger than what a simulation would gain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from winml_dag.canonical import canonical_json
from winml_dag.engine.graph import Graph
from winml_dag.engine.resources import Admission, Capacity, ResourceRequest
from winml_dag.engine.stage import Node
from winml_dag.store.records import Record
from winml_dag.store.store import Store

# Assumed for a stage that has never run. The exact value matters little, but it must not be 0, so that chains have a
# length.
UNKNOWN_SECONDS = 2.0
# Number of records of a stage that are enough to determine its usual values.
_RECORDS = 50
# Input sizes that differ by up to this factor count as similar: peaks scale with the size of a model.
_SIMILAR = 2.0
# Allowance for variation: two runs of the same work do not have exactly the same peak.
_MARGIN = 1.1


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of a graph from its first node to its last; ``seconds`` is the sum over its nodes."""

    ids: tuple[str, ...]
    seconds: float


def chains(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """By id, the length in seconds of the longest chain that starts with a node, its own time included.

    Nodes that are not in *seconds* take no time.
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
    """The chain that took longest, without nodes that took no time, such as reused ones."""
    lengths = chains(graph, seconds)
    if not lengths:
        return CriticalPath((), 0.0)
    path: list[str] = []
    # max() takes the first of several equally long chains, so the result depends only on the graph.
    at: str | None = max((node.id for node in graph.nodes), key=lengths.__getitem__)
    while at is not None:
        path.append(at)
        at = max((reader.id for reader in graph.readers.get(at, ())), key=lengths.__getitem__, default=None)
    taken = tuple(node_id for node_id in path if seconds.get(node_id, 0.0) > 0)
    return CriticalPath(taken, sum(seconds[node_id] for node_id in taken))


def seconds_left(graph: Graph, seconds: Mapping[str, float], slots: int) -> float:
    """How long the work in *seconds*, by id, takes in that many *slots*."""
    return max(sum(seconds.values()) / slots, max(chains(graph, seconds).values(), default=0.0))


@dataclass(frozen=True)
class Work:
    """A graph with the expected seconds of each node, by id.

    ``stage_of``: the stage of each node whose seconds are only the usual ones of its stage. ``never_seen``: stages that
    have no record at all.
    """

    graph: Graph
    seconds: Mapping[str, float]
    stage_of: Mapping[str, str] = field(default_factory=dict)
    never_seen: frozenset[str] = frozenset()


class Eta:
    """The remaining time of a running build. The scheduler reports starts and ends; any thread may read.

    Estimates that are only the usual ones of a stage are corrected by what this run has measured for that stage: on a
    machine that is twice as fast, or with models that are twice as large, all of them are off by the same factor.
    """

    def __init__(self, work: Work, admission: Admission, clock: Callable[[], float] = time.monotonic) -> None:
        self._work = work
        self._admission = admission
        self._clock = clock
        self._ended: set[str] = set()
        self._running: dict[str, float] = {}
        self._left = sum(work.seconds.values())
        # By stage, the actual and the expected seconds of runs whose time was only estimated from the stage.
        self._took: dict[str, tuple[float, float]] = {}

    @property
    def capacity(self) -> Capacity:
        return self._admission.capacity

    @property
    def work_left_seconds(self) -> float:
        """Sum over everything that has not ended, as if run sequentially."""
        return self._left

    @property
    def memory_bytes(self) -> int:
        """The expected memory use of the current runs."""
        return self._admission.memory_bytes

    @property
    def pending(self) -> list[Node]:
        """The nodes that are expected to run and have not started."""
        gone = self._ended | self._running.keys()
        return [node for node in self._work.graph.nodes if node.id not in gone and self._work.seconds.get(node.id)]

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
        """Record that the node has ended and that the nodes that depend on it will not start."""
        lost = [node_id]
        while lost:
            self.ended(last := lost.pop())
            readers = (reader.id for reader in self._work.graph.readers.get(last, ()))
            lost += [reader for reader in readers if reader not in self._ended]

    def seconds_left(self) -> float | None:
        """The remaining seconds; None while most of the remaining work is of stages that have never run."""
        # Copy each one first: the scheduler's thread may change them meanwhile.
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
            # A run that exceeds its estimate may end at any moment.
            left[node_id] = max(0.0, left.get(node_id, 0.0) - (now - since))
        return seconds_left(self._work.graph, left, self.capacity.slots)


@dataclass(frozen=True)
class _Peak:
    """The peak memory of a run and the size of its inputs."""

    memory_bytes: int
    input_bytes: int

    def is_like(self, input_bytes: int) -> bool:
        less, more = sorted((max(1, self.input_bytes), max(1, input_bytes)))
        return more <= _SIMILAR * less


@dataclass(frozen=True)
class _Usual:
    """What the newest records of a stage show."""

    seconds: float
    peaks: tuple[_Peak, ...]
    is_known: bool = True


class CostModel:
    """Estimates runs in *capacity* from the records of *store*.

    The records of a stage are read once, when its first node is estimated.
    """

    def __init__(self, store: Store, capacity: Capacity) -> None:
        self._store = store
        self._counts_memory = capacity.counts_memory
        self._stages: dict[str, _Usual] = {}

    def seconds(self, node: Node, last: Record | None) -> float:
        """The expected seconds of *node*; *last* is the record of this node's last run."""
        return self._usual(node).seconds if last is None else last.elapsed_seconds

    def learn(self, node: Node, record: Record) -> bool:
        """Record the peak of a run that has just ended, as an estimate for other runs of its stage.

        Returns whether it exceeds all earlier peaks by so much that waiting runs of the stage have to be estimated
        again.
        """
        peak = _peak(record) if self._counts_memory and not node.stage.works_in_place else None
        if peak is None:
            return False
        usual = self._usual(node)
        before = max((each.memory_bytes for each in usual.peaks), default=0)
        same = [each for each in usual.peaks if each.input_bytes == peak.input_bytes]
        # Keep only the largest peak per input size, so that thousands of runs do not have to be searched.
        if all(each.memory_bytes < peak.memory_bytes for each in same):
            others = (each for each in usual.peaks if each.input_bytes != peak.input_bytes)
            self._stages[node.stage.name] = replace(usual, peaks=(*others, peak))
        return peak.memory_bytes > before * _MARGIN

    def has_seen(self, node: Node) -> bool:
        """Whether any record of its stage exists."""
        return self._usual(node).is_known

    def request(self, node: Node, last: Record | None, input_bytes: int) -> ResourceRequest:
        """*input_bytes*: the size of its inputs."""
        memory = self._memory_bytes(node, last, input_bytes) if self._counts_memory else 0
        return ResourceRequest(memory, node.pools, node.stage.alone)

    def _memory_bytes(self, node: Node, last: Record | None, input_bytes: int) -> int:
        if (peak := _peak(last)) is not None and peak.is_like(input_bytes):
            return round(peak.memory_bytes * _MARGIN)
        like_it = [peak.memory_bytes for peak in self._usual(node).peaks if peak.is_like(input_bytes)]
        return round(max(like_it) * _MARGIN) if like_it else node.stage.memory.of(input_bytes)

    def _usual(self, node: Node) -> _Usual:
        # A stage that a recipe declares is one node: records of other stages with its name are unrelated.
        if node.stage.works_in_place:
            return _NOTHING
        name = node.stage.name
        if name not in self._stages:
            from statistics import median  # imports fractions, and most builds need no estimate of a stage

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
    """The ids of nodes that will probably turn out to repeat the work of an earlier node.

    This assumes that outputs declared as likely unchanged are so. These nodes will be cache hits and take no time.
    """
    if not any(node.stage.likely_unchanged for node in graph.nodes):
        return frozenset()
    identities: dict[str, object] = {}
    seen: dict[tuple[object, ...], int] = {}
    configs: dict[int, str] = {}
    found: list[str] = []
    for node in graph.nodes:
        inputs = {slot: identities.get(name, name) for slot, name in node.inputs.items()}
        if id(node.config) not in configs:
            configs[id(node.config)] = canonical_json(node.config)
        work = (node.stage.name, node.stage.version, configs[id(node.config)], frozenset(node.toolchain.items()))
        number = seen.setdefault((*work, frozenset(inputs.items())), count := len(seen))
        if number < count:
            found.append(node.id)
        for slot in node.stage.outputs:
            as_before = inputs.get(slot) if slot in node.stage.likely_unchanged else None
            identities[node.output(slot)] = as_before or (number, slot)
    return frozenset(found)


def expected_work(
    graph: Graph,
    names: Mapping[str, str],
    lasts: Mapping[str, Record],
    costs: CostModel,
) -> Work:
    """What each node would take if it ran.

    *names*: by id, the name under which its result is remembered. *lasts*: records by that name.
    """
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
