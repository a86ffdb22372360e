"""The graph of an ONNX file as values: operators, inputs, outputs, and tensors without their data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from winml_dag.frozen import frozen

# The key in a node's metadata for the PyTorch module that it computes a part of; it is winml-cli's.
TAG_KEY = "winml.hierarchy.tag"


@frozen
class Tensor:
    """A constant of the graph.

    ``stored_bytes`` are in the file itself; ``external`` is its location otherwise, or None. ``values_at``: start and
    end in the file if its numbers are plain little-endian bytes; else None. ``integers``: its numbers, if they are few
    and written as integers. ``plain``: their little-endian bytes, if they are few and in the file itself in that form.
    """

    name: str
    data_type: int
    dims: tuple[int, ...]
    stored_bytes: int
    external: dict[str, str] | None
    values_at: tuple[int, int] | None = None
    integers: tuple[int, ...] = ()
    plain: bytes = b""


@frozen
class Attribute:
    """What is used of an attribute.

    ``content`` is None if there is no text, or one too long to be a name. ``number``, ``integers``, ``numbers`` and
    ``texts``: its float, or its list of integers, of floats, of short texts; a list with more members than any operator
    of the standard has is empty.
    """

    name: str
    integer: int | None
    content: bytes | None
    content_bytes: int
    tensors: tuple[Tensor, ...]
    graphs: tuple[Graph, ...]
    number: float | None = None
    integers: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    texts: tuple[bytes, ...] = ()


@frozen
class Node:
    """A node of a graph; ``domain`` is empty for the ONNX standard, ``tag`` if the module is unknown."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    tag: str = ""


@frozen
class Value:
    """A value and its type. ``data_type`` is 0 for a non-tensor; ``dims`` is None if the rank is unknown."""

    name: str
    data_type: int
    dims: tuple[int | str | None, ...] | None


@frozen
class Graph:
    """A graph or subgraph. A sparse initializer counts as two tensors, its values and its indices.

    ``values``: what the file has about values between its nodes; only if requested from :func:`read_model`.
    """

    name: str
    nodes: tuple[Node, ...]
    initializers: tuple[Tensor, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    values: tuple[Value, ...] = ()


@frozen
class Function:
    """A function of the model: an operator composed of others."""

    name: str
    domain: str
    nodes: tuple[Node, ...]


@frozen
class Model:
    """An ONNX file without its tensor data; ``domain``, ``version`` and ``description`` are set by its producer."""

    ir_version: int
    producer_name: str
    producer_version: str
    opsets: dict[str, int]
    metadata: dict[str, str]
    graph: Graph
    functions: tuple[Function, ...]
    domain: str = ""
    version: int = 0
    description: str = ""

    @property
    def producer(self) -> str:
        """Name and version, if known."""
        return f"{self.producer_name} {self.producer_version}".strip()


def all_nodes(model: Model) -> list[Node]:
    """Return the nodes of the graph, of its subgraphs, and of function bodies."""
    bodies = [graph.nodes for graph in all_graphs(model)] + [function.nodes for function in model.functions]
    return [node for body in bodies for node in body]


def all_tensors(model: Model, nodes: Iterable[Node]) -> list[Tensor]:
    """Return the constants of all graphs and of *nodes*, which are all of the model's."""
    tensors = [tensor for graph in all_graphs(model) for tensor in graph.initializers]
    tensors.extend(tensor for node in nodes for attribute in node.attributes for tensor in attribute.tensors)
    return tensors


def constants_of(model: Model, nodes: Iterable[Node]) -> dict[str, Tensor]:
    """Return all constants by the name under which *nodes*, all of the model's, read them: a Constant by its output."""
    found = {tensor.name: tensor for tensor in all_tensors(model, nodes)}
    for node in nodes:
        if node.op_type == "Constant" and node.outputs:
            found.update((node.outputs[0], tensor) for attribute in node.attributes for tensor in attribute.tensors)
    return found


def attribute_of(node: Node, name: str) -> Attribute | None:
    return next((attribute for attribute in node.attributes if attribute.name == name), None)


def integer_of(node: Node, name: str, default: int = 0) -> int:
    found = attribute_of(node, name)
    return default if found is None or found.integer is None else found.integer


def integers_of(node: Node, name: str) -> tuple[int, ...]:
    found = attribute_of(node, name)
    return () if found is None else found.integers


def all_graphs(model: Model) -> Iterator[Graph]:
    """Yield the graph, its subgraphs, and those of function bodies."""
    yield model.graph
    for nodes in (model.graph.nodes, *(function.nodes for function in model.functions)):
        yield from _subgraphs(nodes)


def _subgraphs(nodes: Iterable[Node]) -> Iterator[Graph]:
    """Yield all subgraphs of the nodes, recursively."""
    for node in nodes:
        for attribute in node.attributes:
            for graph in attribute.graphs:
                yield graph
                yield from _subgraphs(graph.nodes)
