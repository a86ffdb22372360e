"""The graphs inside a graph: branches of If, bodies of Loop and Scan, at any depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto


def subgraphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    """The graphs that *attribute* holds itself."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def graphs_inside(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """All graphs inside the nodes, and inside those graphs' nodes."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from graphs_of(graph)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """*graph*, and all graphs inside it."""
    yield graph
    yield from graphs_inside(graph.node)


def read_inside(nodes: Iterable[NodeProto]) -> set[str]:
    """Names that the graphs inside *nodes* read; names of values of their own are among them."""
    inner = list(graphs_inside(nodes))
    read = {name for graph in inner for node in graph.node for name in node.input}
    return read | {value.name for graph in inner for value in graph.output}
