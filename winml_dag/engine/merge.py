"""Merge several graphs into one in which equal work is one node, so that work shared by many builds runs once.

Two nodes are equal when everything that determines their results, or where these go, is equal: the stage, config,
tools, and inputs, which must be equal sources or come from equal nodes. This is decided before anything runs. Nodes
whose inputs only turn out to have the same bytes get the same key later, and the scheduler runs it once.
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
    """A complete graph with the content of its sources. ``label``: the prefix of its node ids after merging."""

    label: str
    graph: Graph
    sources: Mapping[str, Artifact]


@dataclass(frozen=True)
class Merged:
    """``graph`` does the work of all *parts*.

    Attributes:
        sources: content by name in ``graph``.
        ids: for each part, the id in ``graph`` by the id in the part. A node has the label of the first part that
            contains it.
        order: by id, the position of each node if each part comes before what only later parts have. A run in this
            order finishes one part after the other.
    """

    graph: Graph
    sources: Mapping[str, Artifact]
    ids: tuple[Mapping[str, str], ...]
    order: Mapping[str, int]

    def readers(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """By node id, everything that the node represents: the index of a part, and the id there."""
        found: dict[str, list[tuple[int, str]]] = {node.id: [] for node in self.graph.nodes}
        for index, ids in enumerate(self.ids):
            for own, node_id in ids.items():
                found[node_id].append((index, own))
        return found


def merge(parts: Sequence[Part]) -> Merged:
    """The graph of all *parts*, whose labels differ."""
    merging = _Merging()
    ids = tuple(merging.add(part) for part in parts)
    order = {node.id: index for index, node in enumerate(merging.nodes.values())}
    return Merged(Graph.of(merging.nodes.values(), merging.sources.values()), merging.artifacts, ids, order)


class _Merging:
    """The merged nodes and sources so far.

    Attributes:
        nodes: by identity.
        sources: by identity.
        artifacts: the content of the sources, by name.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.sources: dict[str, Source] = {}
        self.artifacts: dict[str, Artifact] = {}

    def add(self, part: Part) -> dict[str, str]:
        """The merged id for each id in *part*."""
        # By name in the part: the identity of an artifact, independent of names, and its name in the merged graph.
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
    """One string for all nodes that do the same work; *inputs*: the identity of what each slot reads."""
    stage, command = node.stage, node.command
    identity: dict[str, JsonValue] = {
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
        "surroundings": node.machine_facts,
        "check": node.check,
        "environment": node.environment,
    }
    return json_hash(identity)
