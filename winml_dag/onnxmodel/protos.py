"""Graphs in onnx's own classes: their subgraphs, their constants, the names of values, the order of nodes.

A branch of If or a body of Loop may use names of values that outer or sibling graphs also use, and it reads values of
outer graphs that no node lists among its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from winml_dag.onnxmodel.graph import byte_size

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto


def replace_items(field: Any, items: Iterable[Any]) -> None:
    """Replace all messages of the repeated *field*."""
    kept = list(items)
    del field[:]
    field.extend(kept)


def remove_items(field: Any, is_gone: Callable[[Any], bool]) -> None:
    """Remove messages of the repeated *field*, by index: by value all before them, possibly gigabytes, are compared."""
    for index in reversed([index for index, item in enumerate(field) if is_gone(item)]):
        del field[index]


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the values of the attributes of *node* by name."""
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def readers_of(nodes: Iterable[NodeProto]) -> dict[str, list[NodeProto]]:
    """Return the readers among *nodes* by value; a node that reads one twice is there twice."""
    found: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            found.setdefault(name, []).append(node)
    return found


def shapes_of(graph: GraphProto) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of values of *graph*; an open size is None."""
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type for value in values if value.type.tensor_type.HasField("shape")}
    return {
        name: tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
        for name, kind in types.items()
    }


def subgraphs(attribute: AttributeProto) -> Iterator[GraphProto]:
    """Yield the direct subgraphs of *attribute*."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def graphs_inside(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """Yield all subgraphs of the nodes, recursively."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in subgraphs(attribute):
                yield from graphs_of(graph)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield *graph* and all its subgraphs, recursively."""
    yield graph
    yield from graphs_inside(graph.node)


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of *graph*, each followed by those of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from nodes_of(inner)


def read_inside(nodes: Iterable[NodeProto]) -> set[str]:
    """Return names that the subgraphs of *nodes* read, including names of their own values."""
    inner = list(graphs_inside(nodes))
    read = {name for graph in inner for node in graph.node for name in node.input}
    return read | {value.name for graph in inner for value in graph.output}


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Return initializers and dense values of Constant nodes, by the name that nodes read."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    return found


def without_data(tensor: TensorProto, location: str) -> TensorProto:
    """Return *tensor* with its data at the start of the file *location*, whatever is there."""
    lean = type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    lean.data_location = type(tensor).EXTERNAL
    size = byte_size(tensor.data_type, tensor.dims)
    for key, value in (("location", location), ("offset", "0"), ("length", str(size))):
        lean.external_data.add(key=key, value=value)
    return lean


def without_weights(model: ModelProto) -> ModelProto:
    """Return a copy of *model* in which initializers of 1024 bytes or more are without data; no metadata."""
    graph = model.graph
    lean = type(model)(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    copied = {"node": graph.node, "input": graph.input, "output": graph.output, "value_info": graph.value_info}
    lean.graph.CopyFrom(type(graph)(name=graph.name, **copied))
    lean.graph.initializer.extend(
        tensor if byte_size(tensor.data_type, tensor.dims) < 1024 else without_data(tensor, "weights")
        for tensor in graph.initializer
    )
    return lean


class Naming:
    """Generates unique names that are not *taken*; the same requests get the same names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of(cls, graph: GraphProto) -> Naming:
        """Avoid the names of all values and nodes of *graph* and its subgraphs."""
        return cls(name for inner in graphs_of(graph) for name in _names(inner))

    def new(self, wanted: str) -> str:
        """Return *wanted*, with a number appended if it is taken."""
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
    """Rename values of *graph* and its subgraphs in place, wherever they are computed, read or described."""
    for inner in graphs_of(graph):
        _rename(inner, names)


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    sparse = (element.values for element in graph.sparse_initializer)
    for element in (*graph.input, *graph.output, *graph.value_info, *graph.initializer, *sparse):
        if element.name in names:
            element.name = names[element.name]
    for node in graph.node:
        for values in (node.input, node.output):
            if not names.keys().isdisjoint(values):
                values[:] = [names.get(name, name) for name in values]


def distinct_names(model: ModelProto) -> None:
    """Rename, in place, values of subgraphs whose names another graph of *model* uses for its own values.

    The names of the outermost graph do not change, nor do unique names.
    """
    _distinguish(model.graph, {}, set(), Naming.of(model.graph))


def _distinguish(graph: GraphProto, around: Mapping[str, str], used: set[str], naming: Naming) -> None:
    """*around*: new names of values of the outer graphs; *used*: names that previous graphs define."""
    renamed = dict(around)
    own = dict.fromkeys(_defined(graph))
    for name in own:
        renamed.pop(name, None)
        if name in used:
            renamed[name] = naming.new(name)
    used.update(own)
    _rename(graph, renamed)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                _distinguish(inner, renamed, used, naming)


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def sort_nodes(graph: GraphProto) -> None:
    """Sort nodes topologically, including what subgraphs read; keep the order where possible."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [
        sorted({makers[name] for name in (*node.input, *read_inside([node])) if name in makers} - {index})
        for index, node in enumerate(graph.node)
    ]
    order: dict[int, None] = {}
    begun: set[int] = set()
    for first in range(len(needs)):
        waiting = [first]
        while waiting:
            index = waiting[-1]
            begun.add(index)
            missing = next((need for need in needs[index] if need not in begun), None)
            if missing is None:
                order.setdefault(index)
                waiting.pop()
            else:
                waiting.append(missing)
    if list(order) == sorted(order):
        return
    # Copies: deleting from a message invalidates its elements, whatever refers to them.
    replace_items(graph.node, map(deepcopy, map(graph.node.__getitem__, order)))
