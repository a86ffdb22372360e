"""The graph of a run: nodes in topological order, artifacts by maker, sources by name.

Every error in a graph is reported here, by name, before anything runs. The standard library does the ordering; networkx
is imported only for questions about paths, because importing it costs 0.12 s, half of what an up-to-date build may take
in total.

Several graphs are merged into one in which equal work is one node, so that work shared by many builds runs once. Two
nodes are equal when everything that determines their results, or where these go, is equal: the stage, config, tools,
and inputs, which must be equal sources or come from equal nodes. This is decided before anything runs. Nodes whose
inputs only turn out to have the same bytes get the same key later, and the scheduler runs it once.
"""

from __future__ import annotations

import graphlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import canonical_json
from winml_dag.engine.stage import Node, Source
from winml_dag.errors import UsageError
from winml_dag.store.artifact import Artifact

if TYPE_CHECKING:
    import networkx


class Cycle(UsageError):
    """Stages that wait for each other.

    ``path`` has their ids in the direction of the data, with the first one at both ends.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"These stages wait for each other: {' -> '.join(path)}.")
        self.path = path


@dataclass(frozen=True)
class Graph:
    """A checked graph; ``nodes`` are in topological order. Create one with :meth:`of`.

    ``makers``: the node that outputs each artifact. ``given``: the same for artifacts of nodes that are not in this
    graph, but in the graph of which this one is a part.
    """

    nodes: tuple[Node, ...]
    sources: Mapping[str, Source]
    makers: Mapping[str, Node]
    given: Mapping[str, Node] = field(default_factory=dict)

    @classmethod
    def of(
        cls, nodes: Iterable[Node], sources: Iterable[Source] = (), given: Mapping[str, Node] | None = None
    ) -> Graph:
        """Check and order *nodes*.

        Raises:
            UsageError: for two nodes with one id, two sources with one name, two makers of one artifact, an input that
                nothing makes, a kind that a stage does not take, a missing or unknown slot, a cycle.
        """
        by_id = _by_id(nodes)
        source_by_name = _by_name(sources)
        makers = _makers(by_id.values(), source_by_name)
        for node in by_id.values():
            _check_inputs(node, makers, source_by_name, given or {})
        return cls(_ordered(by_id, makers), source_by_name, makers, given or {})

    def node(self, node_id: str) -> Node:
        return self._by_id[node_id]

    @cached_property
    def read_files(self) -> frozenset[Path]:
        """The files of all sources, without links."""
        return frozenset(file.path.resolve() for source in self.sources.values() for file in source.files)

    @cached_property
    def _by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Node]]:
        """By id, the nodes that read an output of a node, each once; nodes without readers are omitted."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for maker in self.needs(node):
                found.setdefault(maker.id, []).append(node)
        return found

    def maker(self, artifact: str) -> Node:
        """The node that outputs *artifact*, in this graph or in ``given``."""
        return self.makers.get(artifact) or self.given[artifact]

    def needs(self, node: Node) -> Collection[Node]:
        """The nodes whose outputs *node* reads, each once."""
        makers = self.makers
        return {makers[name].id: makers[name] for name in node.inputs.values() if name in makers}.values()

    def edges(self) -> Iterator[tuple[str, str, str]]:
        """(maker or source name, reader, artifact name)."""
        for node in self.nodes:
            for name in node.inputs.values():
                yield (self.makers[name].id if name in self.makers else name), node.id, name

    def digraph(self) -> networkx.MultiDiGraph:
        """This graph for networkx: nodes have ``source`` (bool), edges have ``artifact``."""
        import networkx

        graph = networkx.MultiDiGraph()
        graph.add_nodes_from(self.sources, source=True)
        graph.add_nodes_from((node.id for node in self.nodes), source=False)
        graph.add_edges_from((maker, reader, {"artifact": name}) for maker, reader, name in self.edges())
        return graph

    def downstream(self, node_id: str) -> frozenset[str]:
        """The ids of all nodes that depend on *node_id*, directly or indirectly."""
        import networkx

        return frozenset(networkx.descendants(self.digraph(), node_id))


def _by_id(nodes: Iterable[Node]) -> dict[str, Node]:
    by_id: dict[str, Node] = {}
    for node in nodes:
        if node.id in by_id:
            raise UsageError(f"Two stages have the name {node.id!r}.", advice="Give one of them another name.")
        by_id[node.id] = node
    return by_id


def _by_name(sources: Iterable[Source]) -> dict[str, Source]:
    by_name: dict[str, Source] = {}
    for source in sources:
        if by_name.setdefault(source.name, source) != source:
            raise UsageError(f"Two sources have the name {source.name!r}.")
    return by_name


def _makers(nodes: Iterable[Node], sources: Mapping[str, Source]) -> dict[str, Node]:
    makers: dict[str, Node] = {}
    for node in nodes:
        for slot in node.stage.outputs:
            name = node.output(slot)
            other = makers[name].id if name in makers else name if name in sources else None
            if other is not None:
                raise UsageError(f"{name!r} has two makers: {other!r} and {node.id!r}.")
            makers[name] = node
    return makers


def _check_inputs(
    node: Node, makers: Mapping[str, Node], sources: Mapping[str, Source], given: Mapping[str, Node]
) -> None:
    slots = node.stage.inputs
    if unknown := node.inputs.keys() - slots.keys():
        raise UsageError(f"Stage {node.id!r} has no input {', '.join(sorted(unknown))!r}.")
    for slot, declared in slots.items():
        name = node.inputs.get(slot)
        if name is None:
            if declared.required:
                raise UsageError(f"Stage {node.id!r} needs an input {slot!r}.")
            continue
        if name not in makers and name not in sources and name not in given:
            raise UsageError(f"Stage {node.id!r} reads {name!r}, which no stage makes and which is not a source.")
        if declared.accepts is None:
            continue
        maker = makers.get(name) or given.get(name)
        kind = sources[name].kind if maker is None else maker.kind(maker.slot_of(name))
        if kind not in declared.accepts:
            because = declared.refusals.get(kind, f"it takes: {', '.join(sorted(declared.accepts))}")
            # A stage that keeps the kind of its input passes it on in another form: the user knows what it reads.
            while maker is not None and (passed := maker.slot_of(name)) in maker.kinds and passed in maker.inputs:
                name = maker.inputs[passed]
                maker = makers.get(name)
            raise UsageError(f"{node.stage.name} cannot take {name!r} ({kind}): {because}.")


def _ordered(by_id: Mapping[str, Node], makers: Mapping[str, Node]) -> tuple[Node, ...]:
    needs = (
        (node.id, tuple([makers[name].id for name in node.inputs.values() if name in makers]))
        for node in by_id.values()
    )
    return tuple([by_id[node_id] for node_id in _order(tuple(needs))])


@lru_cache(maxsize=16)
def _order(needs: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[str, ...]:
    """Return the ids in topological order. *needs*: those that each one waits for; often alike in builds of a sweep."""
    try:
        return tuple(graphlib.TopologicalSorter(dict(needs)).static_order())
    except graphlib.CycleError as error:
        # CycleError lists each node before the one that it depends on; readers expect arrows in the direction of the
        # data.
        raise Cycle(tuple(error.args[1])) from None


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
        order: by id, the position of each node if each graph comes before what only later graphs have. A run in this
            order finishes one graph after the other.
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
    # Nodes and sources by identity, which is independent of names.
    nodes: dict[str, Node] = {}
    sources: dict[str, Source] = {}
    artifacts: dict[str, Artifact] = {}
    # Distinct nodes by number, and each config as text: the rounds of a search share theirs.
    identities: dict[tuple[object, ...], int] = {}
    configs: dict[int, str] = {}
    ids: list[dict[str, str]] = []
    for part in parts:
        # By name in the part: the identity of an artifact, and its name in the merged graph.
        known: dict[str, tuple[str, str]] = {}
        for name, source in part.graph.sources.items():
            identity = f"{source.kind} {part.sources[name].digest}"
            if identity not in sources:
                free = name if name not in artifacts else f"{part.label}/{name}"
                sources[identity], artifacts[free] = replace(source, name=free), part.sources[name]
            known[name] = identity, sources[identity].name
        own_ids: dict[str, str] = {}
        for node in part.graph.nodes:
            if id(node.config) not in configs:
                configs[id(node.config)] = canonical_json(node.config)
            read = {slot: known[name][0] for slot, name in node.inputs.items()}
            identity = str(identities.setdefault(_identity(node, configs[id(node.config)], read), len(identities)))
            if (kept := nodes.get(identity)) is None:
                inputs = {slot: known[name][1] for slot, name in node.inputs.items()}
                kept = nodes[identity] = replace(node, id=f"{part.label}/{node.id}", inputs=inputs)
            own_ids[node.id] = kept.id
            known.update((node.output(slot), (f"{identity}.{slot}", kept.output(slot))) for slot in node.stage.outputs)
        ids.append(own_ids)
    order = {node.id: index for index, node in enumerate(nodes.values())}
    return Merged(Graph.of(nodes.values(), sources.values()), artifacts, tuple(ids), order)


def _identity(node: Node, config: str, inputs: Mapping[str, str]) -> tuple[object, ...]:
    """One value for all nodes that do the same work; *inputs*: the identity of what each slot reads."""
    stage, command = node.stage, node.command
    return (
        (stage.name, stage.version, stage.work, stage.timeout_seconds, stage.works_in_place),
        config,
        frozenset(inputs.items()),
        frozenset((slot, node.kind(slot)) for slot in stage.outputs),
        frozenset(node.toolchain.items()),
        None if command is None else (command.arguments, frozenset(command.environment.items())),
        node.folder,
        frozenset(node.paths.items()),
        node.interpreter,
        frozenset(node.machine_facts.items()),
        node.check,
        node.environment,
    )
