"""Names of values and nodes: new ones that collide with no name of a graph, and one in place of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from winml_dag.onnxmodel.subgraphs import graphs_of

if TYPE_CHECKING:
    from onnx import GraphProto


class Naming:
    """Hands out names that are not *taken*, each once; the same requests get the same names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: GraphProto) -> Naming:
        """Avoids the names of all values and nodes of *graph* and its subgraphs."""
        return cls(name for inner in graphs_of(graph) for name in _names(inner))

    def new(self, wanted: str) -> str:
        """*wanted*, with a number behind it where that is taken."""
        name, count = wanted, 1
        while name in self._taken:
            name, count = f"{wanted}.{count}", count + 1
        self._taken.add(name)
        return name


def _names(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield node.name
        yield from node.input
        yield from node.output


def rename_values(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename values of *graph* wherever it or its subgraphs make, read or describe them, in place."""
    for inner in graphs_of(graph):
        for group in (inner.input, inner.initializer, inner.value_info, inner.output):
            for element in group:
                if element.name in names:
                    element.name = names[element.name]
        for node in inner.node:
            for values in (node.input, node.output):
                if not names.keys().isdisjoint(values):
                    values[:] = [names.get(name, name) for name in values]
