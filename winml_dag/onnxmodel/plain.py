"""Constants written down as quantization tools expect them: none is sparse, and none is what a subgraph puts out."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from winml_dag.onnxmodel.naming import Naming
from winml_dag.onnxmodel.subgraphs import graphs_inside, graphs_of


def plain_constants(model: ModelProto) -> None:
    """Write sparse constants of *model* in full, in place, and let subgraphs put out constants through an Identity.
    Values must have names of their own in subgraphs (see :func:`~winml_dag.onnxmodel.scopes.distinct_names`).
    """
    for graph in graphs_of(model.graph):
        graph.initializer.extend(_dense(sparse) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "sparse_value":
                    dense = _dense(attribute.sparse_tensor)
                    attribute.CopyFrom(helper.make_attribute("value", dense, attr_type=AttributeProto.TENSOR))
    # Those of the outermost graph are set aside while it is quantized.
    naming = Naming.of(model.graph)
    for graph in graphs_inside(model.graph.node):
        _put_out_through_nodes(graph, naming)


def _dense(sparse: SparseTensorProto) -> TensorProto:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    full = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        full.reshape(-1)[indices] = values
    else:
        full[tuple(indices.T)] = values
    return numpy_helper.from_array(full, sparse.values.name)


def _put_out_through_nodes(graph: GraphProto, naming: Naming) -> None:
    shown = {value.name for value in graph.output} - {value.name for value in graph.input}
    renamed = {tensor.name: naming.new(tensor.name) for tensor in graph.initializer if tensor.name in shown}
    if not renamed:
        return
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    nodes: list[NodeProto] = [node for each in graphs_of(graph) for node in each.node]
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for name, constant in renamed.items():
        graph.node.append(helper.make_node("Identity", [constant], [name], name=f"{name}/output"))
