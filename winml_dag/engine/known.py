"""What is known of a graph so far: the digest of every artifact that a source, a record or a run has told.

A stage's key is known as soon as its inputs' digests are; those come from records, so the bytes of intermediates need
not be on this machine at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from winml_dag.engine.change import Inputs
from winml_dag.engine.graph import Graph
from winml_dag.engine.keys import ingredients_of
from winml_dag.engine.stage import Node, Source
from winml_dag.store.artifact import Artifact
from winml_dag.store.fingerprints import Fingerprints
from winml_dag.store.record import Ingredients, Record


def source_artifact(source: Source, fingerprints: Fingerprints) -> Artifact:
    """The files of *source* by content. Raises InputError for one that is missing or unreadable."""
    return Artifact.of(fingerprints.entry(file.path, file.name) for file in source.files)


@dataclass
class Known:
    """Artifacts by name, and the record that each finished node stands on."""

    graph: Graph
    artifacts: dict[str, Artifact]
    records: dict[str, Record] = field(default_factory=dict)
    # Of nodes that have not settled: asked for in a look ahead, and again for a decision. Each keeps the hash of its
    # config, which is half of what that costs.
    _ingredients: dict[str, Ingredients] = field(default_factory=dict)

    @classmethod
    def at_start(cls, graph: Graph, sources: Mapping[str, Artifact]) -> Known:
        return cls(graph, dict(sources))

    def ingredients(self, node: Node) -> Ingredients | None:
        """None as long as an input is not known."""
        inputs = self.inputs(node)
        if len(inputs) < len(node.inputs):
            return None
        digests = {slot: artifact.digest for slot, artifact in inputs.items()}
        found = self._ingredients.get(node.id)
        if found is None or found.inputs != digests:
            found = self._ingredients[node.id] = ingredients_of(node, digests)
        return found

    def inputs(self, node: Node) -> dict[str, Artifact]:
        """The inputs of *node* that are known, by slot."""
        return {slot: self.artifacts[name] for slot, name in node.inputs.items() if name in self.artifacts}

    def inputs_and_sources(self, node: Node) -> Inputs:
        """The same with the sources, which say what the user calls a file."""
        sources = {slot: self.graph.sources[name] for slot, name in node.inputs.items() if name in self.graph.sources}
        return Inputs(self.inputs(node), sources)

    def settle(self, node: Node, record: Record) -> None:
        self.records[node.id] = record
        self._ingredients.pop(node.id, None)
        for slot, artifact in record.outputs.items():
            self.artifacts[node.output(slot)] = artifact

    def assume(self, node: Node, last: Record | None) -> bool:
        """Go by *last*, the result that *node* had before, in what is usually the same; without one, by what it reads
        in the slot of that name. Returns whether there was anything to go by.
        """
        read = {slot: self.artifacts[name] for slot, name in node.inputs.items() if name in self.artifacts}
        before = read if last is None else last.outputs
        found = {node.output(slot): before[slot] for slot in node.stage.usually if slot in before}
        self.artifacts.update(found)
        return bool(found)

    def forget(self, node: Node) -> None:
        self.records.pop(node.id, None)
        for slot in node.stage.outputs:
            self.artifacts.pop(node.output(slot), None)

    def unknown_needs(self, node: Node) -> tuple[str, ...]:
        """The ids of the makers whose output *node* still waits for."""
        return tuple(maker.id for maker in self.graph.needs(node) if maker.id not in self.records)
