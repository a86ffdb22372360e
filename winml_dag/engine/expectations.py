"""What a node will take, in seconds and in bytes: as it did last time, else as its stage does, else as is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from winml_dag.canonical import json_hash
from winml_dag.engine.admission import Capacity, Need
from winml_dag.engine.eta import Work
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node
from winml_dag.store.record import Record
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


class Expectations:
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

    def need(self, node: Node, last: Record | None, input_bytes: int) -> Need:
        """*input_bytes*: as much as it will read."""
        memory = self._memory_bytes(node, last, input_bytes) if self._counts_memory else 0
        return Need(memory, node.pools, node.stage.alone)

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
    artifacts = (record.input_artifact(slot) for slot in record.ingredients.inputs)
    return _Peak(peak, sum(artifact.size for artifact in artifacts if artifact is not None))


def repeats(graph: Graph) -> frozenset[str]:
    """The ids of nodes that turn out to do the work of one before them, as long as outputs that usually stay as they
    are do so: they will be found, and take no time.
    """
    if not any(node.stage.usually for node in graph.nodes):
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
            as_before = inputs.get(slot) if slot in node.stage.usually else None
            identities[node.output(slot)] = as_before or f"{identity}.{slot}"
    return frozenset(found)


def expected_work(
    graph: Graph,
    names: Mapping[str, str],
    lasts: Mapping[str, Record],
    expectations: Expectations,
) -> Work:
    """What each node would take if it ran; *names*: by id, what its result is remembered under, as *lasts*."""
    free = repeats(graph)
    seconds: dict[str, float] = {}
    stage_of: dict[str, str] = {}
    never_seen: set[str] = set()
    for node in graph.nodes:
        last = lasts.get(names[node.id])
        seconds[node.id] = 0.0 if node.id in free else expectations.seconds(node, last)
        if last is None:
            stage_of[node.id] = node.stage.name
            if not expectations.has_seen(node):
                never_seen.add(node.stage.name)
    return Work(graph, seconds, stage_of, frozenset(never_seen))
