"""How values flow through a graph: who makes and who reads each of them, what is constant, and of what type it is.

Of the graph alone, without tensor data, so that it takes no time however large the model is. Graphs inside of nodes
(of If and Loop) are not looked into; what they read of the graph around them counts as read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from winml_dag.onnxmodel.facts import dtype_name, struct_letter
from winml_dag.onnxmodel.graph import Attribute, Graph, Model, Node, Tensor, Value

Numbers = tuple[int | float, ...]


@dataclass(frozen=True)
class Dataflow:
    """The main graph of *model*, which was read with its values."""

    model: Model

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.model.graph.nodes

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        """The node that makes a value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read a value, by the value's name; each once."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys((*node.inputs, *_read_inside(node))):
                if name:
                    found.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The values that the graph gives."""
        return frozenset(value.name for value in self.model.graph.outputs)

    @cached_property
    def constants(self) -> Mapping[str, Tensor]:
        """Initializers, what Constant nodes give, and what Identity nodes make of either (exporters write one for each
        further use of equal weights), by the name under which nodes read them. An initializer that is among the inputs
        is none: the user may feed another value.
        """
        fed = {value.name for value in self.model.graph.inputs}
        found = {tensor.name: tensor for tensor in self.model.graph.initializers if tensor.name not in fed}
        for node in self.nodes:
            if node.op_type == "Constant" and node.outputs:
                found.update((node.outputs[0], tensor) for attribute in node.attributes for tensor in attribute.tensors)
            elif node.op_type == "Identity" and node.inputs and node.inputs[0] in found:
                found[node.outputs[0]] = found[node.inputs[0]]
        return found

    @cached_property
    def _values(self) -> Mapping[str, Value]:
        graph = self.model.graph
        return {value.name: value for value in (*graph.values, *graph.inputs, *graph.outputs)}

    def dtype(self, name: str) -> str:
        """Of the value *name*; empty when the file does not tell."""
        tensor, value = self.constants.get(name), self._values.get(name)
        data_type = tensor.data_type if tensor is not None else 0 if value is None else value.data_type
        return dtype_name(data_type) if data_type else ""

    def dims(self, name: str) -> tuple[int | None, ...] | None:
        """Of the value *name*: None for a rank that the file does not tell, and in it for a size that is left open."""
        if (tensor := self.constants.get(name)) is not None:
            return tensor.dims
        value = self._values.get(name)
        if value is None or value.dims is None or not value.data_type:
            return None
        return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in value.dims)

    def numbers(self, name: str) -> Numbers | None:
        """Those of a constant that has few; None for others, and for what is no constant."""
        tensor = self.constants.get(name)
        return None if tensor is None else numbers_of(tensor)


def numbers_of(tensor: Tensor) -> Numbers | None:
    """The numbers of *tensor*, where they are few and lie in the file itself."""
    count = prod(tensor.dims)
    letter = struct_letter(tensor.data_type)
    if tensor.integers and len(tensor.integers) == count and letter not in ("e", ""):
        return tensor.integers
    if not letter or not count or len(tensor.plain) != count * struct.calcsize(letter):
        return None
    return struct.unpack(f"<{count}{letter}", tensor.plain)


def attribute_of(node: Node, name: str) -> Attribute | None:
    return next((attribute for attribute in node.attributes if attribute.name == name), None)


def integers_of(node: Node, name: str) -> tuple[int, ...]:
    found = attribute_of(node, name)
    return () if found is None else found.integers


def _read_inside(node: Node) -> Iterable[str]:
    """Names that the graphs inside of *node* read; those of their own values are among them and do no harm."""
    return (name for attribute in node.attributes for graph in attribute.graphs for name in _read_by(graph))


def _read_by(graph: Graph) -> Iterable[str]:
    for node in graph.nodes:
        yield from node.inputs
        yield from _read_inside(node)
    yield from (value.name for value in graph.outputs)
