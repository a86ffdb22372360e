"""Gives the values that onnxruntime made up while optimizing names that it will not make up again.

Its generator starts anew with every session and does not look at the initializers that are there: a saved model with a
Gemm fusion in it may fail to load at the level of fusions that sessions have by default (``Attempt to replace the
existing tensor``), and with it every later stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import ModelProto

from winml_dag.onnxmodel import graph as onnx_graph
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.onnxmodel.protos import Naming, graphs_of, rename_values

PREFIX = "optimized/"


def names_in(path: Path) -> frozenset[str]:
    """The names of all values of the model *path*, in its subgraphs and functions too."""
    model = read_model(path)
    names = set(_graph_names(model.graph))
    for function in model.functions:
        names.update(_node_names(function.nodes))
    return frozenset(names)


def _graph_names(graph: onnx_graph.Graph) -> Iterator[str]:
    yield from (value.name for value in (*graph.inputs, *graph.outputs))
    yield from (tensor.name for tensor in graph.initializers)
    yield from _node_names(graph.nodes)


def _node_names(nodes: tuple[onnx_graph.Node, ...]) -> Iterator[str]:
    for node in nodes:
        yield from (*node.inputs, *node.outputs)
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield from _graph_names(graph)


def rename_generated(model: ModelProto, known: frozenset[str]) -> None:
    """Rename, in place, every value whose name is not *known*; the same model always gets the same names."""
    renamed: dict[str, str] = {}
    naming = Naming(known)
    for graph in graphs_of(model.graph):
        made = [initializer.name for initializer in graph.initializer]
        made.extend(name for node in graph.node for name in node.output)
        for name in made:
            if name and name not in known and name not in renamed:
                renamed[name] = naming.new(PREFIX + name.lstrip("/"))
    rename_values(model.graph, renamed)
