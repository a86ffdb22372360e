"""Names and order where graphs are inside of nodes, for tools that keep one table of names for a whole model.

A branch of If or a body of Loop may give its values names that the graphs around it or beside it use as well, and it
reads values of the graphs around it, which no list of a node's inputs tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto

from winml_dag.onnxmodel.naming import Naming
from winml_dag.onnxmodel.subgraphs import read_inside, subgraphs


def distinct_names(model: ModelProto) -> None:
    """Rename, in place, the values of inner graphs whose names another graph of *model* uses for values of its own.

    The names of the outermost graph stay, and so do all that are unique.
    """
    _distinguish(model.graph, {}, set(), Naming.of(model.graph))


def _distinguish(graph: GraphProto, around: Mapping[str, str], used: set[str], naming: Naming) -> None:
    """*around*: new names of values of the graphs around; *used*: names that graphs before this one define."""
    renamed = dict(around)
    own = dict.fromkeys(_defined(graph))
    for name in own:
        renamed.pop(name, None)
        if name in used:
            renamed[name] = naming.new(name)
    used.update(own)
    for group in (graph.input, graph.output, graph.value_info, graph.initializer):
        for element in group:
            element.name = renamed.get(element.name, element.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = renamed.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for inner in _inside(node):
            _distinguish(inner, renamed, used, naming)


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _inside(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that *node* itself holds."""
    for attribute in node.attribute:
        yield from subgraphs(attribute)


def sort_nodes(graph: GraphProto) -> None:
    """Put each node of *graph* behind those whose values it, or a graph inside of it, reads; what can stay, stays."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    needs = [
        sorted({makers[name] for name in (*node.input, *read_inside([node])) if name in makers} - {place})
        for place, node in enumerate(graph.node)
    ]
    order: dict[int, None] = {}
    begun: set[int] = set()
    for first in range(len(needs)):
        waiting = [first]
        while waiting:
            place = waiting[-1]
            begun.add(place)
            missing = next((need for need in needs[place] if need not in begun), None)
            if missing is None:
                order.setdefault(place)
                waiting.pop()
            else:
                waiting.append(missing)
    if list(order) == sorted(order):
        return
    copies = [NodeProto.FromString(graph.node[place].SerializeToString()) for place in order]
    del graph.node[:]
    graph.node.extend(copies)
