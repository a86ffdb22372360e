"""The constants of a graph, however they are written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, TensorProto


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Initializers, and what Constant nodes have in full, by the name that nodes read."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    return found
