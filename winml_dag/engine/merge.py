"""Several graphs as one, in which equal work is one node: what is the same in many builds runs once, not once in each.

Two nodes are equal when all that could tell their results, or where these go, apart is equal: the stage, config, tools,
and inputs that are equal sources or come from equal nodes. That is asked before anything runs; nodes whose inputs only
turn out to have the same bytes have one key then, and the scheduler runs it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from winml_dag.canonical import JsonValue, json_hash
from winml_dag.engine.graph import Graph
from winml_dag.engine.stage import Node, Source
from winml_dag.store.artifact import Artifact


@dataclass(frozen=True)
class Part:
    """A graph of its own, whole, with its sources by content. ``label``: how its nodes are called among others."""

    label: str
    graph: Graph
    sources: Mapping[str, Artifact]


@dataclass(frozen=True)
class Merged:
    """``graph`` does the work of all *parts*.

    Attributes:
        sources: by content, by the names that they have in ``graph``.
        ids: for each part, by the id that a node has there, the id of the one that does its work; the first part that
            has a node gives it its label.
        order: by id, the place of each node when all of one part comes before what only later ones have: whoever keeps
            to it finishes part by part.
    """

    graph: Graph
    sources: Mapping[str, Artifact]
    ids: tuple[Mapping[str, str], ...]
    order: Mapping[str, int]

    def readers(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """By the id of a node, all that it stands for: the place of a part, and the id there."""
        found: dict[str, list[tuple[int, str]]] = {node.id: [] for node in self.graph.nodes}
        for place, ids in enumerate(self.ids):
            for own, node_id in ids.items():
                found[node_id].append((place, own))
        return found


def merge(parts: Sequence[Part]) -> Merged:
    """The graph of all *parts*, whose labels differ."""
    merging = _Merging()
    ids = tuple(merging.add(part) for part in parts)
    order = {node.id: place for place, node in enumerate(merging.nodes.values())}
    return Merged(Graph.of(merging.nodes.values(), merging.sources.values()), merging.artifacts, ids, order)


class _Merging:
    """What is merged so far.

    Attributes:
        nodes: by identity.
        sources: by identity.
        artifacts: what the sources hold, by name.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.sources: dict[str, Source] = {}
        self.artifacts: dict[str, Artifact] = {}

    def add(self, part: Part) -> dict[str, str]:
        """The id here for each id in *part*."""
        # By name in the part: what an artifact is whoever calls it what, and what it is called here.
        known = dict(self._sources(part))
        ids = {}
        for node in part.graph.nodes:
            identity = _identity(node, {slot: known[name][0] for slot, name in node.inputs.items()})
            inputs = {slot: known[name][1] for slot, name in node.inputs.items()}
            new = replace(node, id=f"{part.label}/{node.id}", inputs=inputs, outputs={})
            kept = self.nodes.setdefault(identity, new)
            ids[node.id] = kept.id
            for slot in node.stage.outputs:
                known[node.output(slot)] = (json_hash([identity, slot]), kept.output(slot))
        return ids

    def _sources(self, part: Part) -> Iterator[tuple[str, tuple[str, str]]]:
        for name, source in part.graph.sources.items():
            artifact = part.sources[name]
            identity = json_hash([source.kind, artifact.digest])
            if identity not in self.sources:
                free = name if name not in self.artifacts else f"{part.label}/{name}"
                self.sources[identity] = replace(source, name=free)
                self.artifacts[free] = artifact
            yield name, (identity, self.sources[identity].name)


def _identity(node: Node, inputs: Mapping[str, str]) -> str:
    """One text for all nodes that do the same; *inputs*: what each slot reads, whoever calls it what."""
    stage, command = node.stage, node.command
    told: dict[str, JsonValue] = {
        "stage": [stage.name, stage.version, stage.work, stage.timeout_seconds, stage.works_in_place],
        "slots": sorted(stage.outputs),
        "config": node.config,
        "inputs": dict(inputs),
        "kinds": {slot: node.kind(slot) for slot in stage.outputs},
        "toolchain": node.toolchain,
        "command": None if command is None else [list(command.arguments), command.environment],
        "folder": None if node.folder is None else str(node.folder),
        "paths": node.paths,
        "interpreter": None if node.interpreter is None else str(node.interpreter),
        "surroundings": node.surroundings,
        "check": node.check,
        "environment": node.environment,
    }
    return json_hash(told)
