"""The float model that calibrate and quantize both start from: checked, in normal form, with the type of every tensor.

Both must see the same tensors. onnxruntime's tools skip a tensor of unknown type with only a line in the log: after one
operator from outside the ONNX standard, everything downstream would silently stay in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import load_model, save_model, with_shapes
from winml_dag.onnxmodel.graph import standard_opset
from winml_dag.onnxmodel.inspect import ModelSummary, inspect_model
from winml_dag.onnxmodel.protos import (
    Naming,
    distinct_names,
    graphs_inside,
    graphs_of,
    nodes_of,
    remove_items,
    replace_items,
    subgraphs,
)
from winml_dag.stages.mask_clamping import clamp_certain
from winml_dag.stages.normalize import FIRST_OPSET
from winml_dag.stages.normalize.forms import normalize_forms


def plain_constants(model: ModelProto) -> None:
    """Write sparse constants of *model* as dense ones, in place; subgraphs then output constants through an Identity.

    Of several constants with one name, the last stays, as in onnxruntime. Quantization tools expect constants in this
    form. Values must have unique names in subgraphs (see :func:`~winml_dag.onnxmodel.protos.distinct_names`).
    """
    for graph in graphs_of(model.graph):
        graph.initializer.extend(_dense(sparse) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        by_name = {tensor.name: tensor for tensor in graph.initializer}
        if len(by_name) < len(graph.initializer):
            replace_items(graph.initializer, by_name.values())
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "sparse_value":
                    dense = _dense(attribute.sparse_tensor)
                    attribute.CopyFrom(helper.make_attribute("value", dense, attr_type=AttributeProto.TENSOR))
    # Only subgraphs: constants that the outermost graph outputs are set aside while it is quantized.
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
    for node in nodes_of(graph):
        node.input[:] = [renamed.get(name, name) for name in node.input]
    for name, constant in renamed.items():
        graph.node.append(helper.make_node("Identity", [constant], [name], name=f"{name}/output"))


_HALF_TYPES = ("float16", "bfloat16")
_PROBE_FILE = Path("probe.onnx")

NOT_COMPUTING = frozenset({"Constant", "Cast"})


def refuse_finished(name: str, model: ModelSummary, done: str, *, weight_only_too: bool = False) -> None:
    """Raise StageError if the *model* in the file *name* is compiled or quantized, see :func:`refuse_unless_float`."""
    if model.is_compiled:
        raise StageError(
            f"{name} is a compiled model: its EPContext nodes hold an execution provider's own binary, which cannot be"
            f" {done}.",
            advice="Use the ONNX model that it was compiled from.",
        )
    if model.is_quantized and not (weight_only_too and model.is_weight_only):
        raise StageError(f"{name} is quantized already and cannot be {done} again.", advice="Use the float32 model.")


def refuse_unless_float(source: Path, done: str, *, weight_only_too: bool = False) -> None:
    """Raise StageError unless the model *source* is in float32, so that it can be *done* (such as "quantized").

    With *weight_only_too*, it may also have 4-bit or 8-bit weights in MatMulNBits, which float16 conversion does not
    change.
    """
    model = inspect_model(source)
    refuse_finished(source.name, model, done, weight_only_too=weight_only_too)
    dtypes = {*model.tensor_bytes, *(spec.dtype for spec in (*model.inputs, *model.outputs))}
    half = [dtype for dtype in _HALF_TYPES if dtype in dtypes]
    if half:
        raise StageError(
            f"{source.name} has tensors in {half[0]} and cannot be {done}.",
            advice="Use the model in float32; precision fp32 builds this one as it is.",
        )


def write_typed(source: Path, destination: Path, *, finite: bool = False) -> int:
    """Write *source* to *destination* in the form of :func:`typed`; return how many constants that replaced.

    Its weights are in a file next to it, whatever their size, so that no step that only needs the graph copies them.
    """
    save_model(load_model(source, weights=False), destination, separate=True)
    model, clamped = typed(onnx.load(destination, load_external_data=False), destination, finite=finite)
    onnx.save(model, destination)
    return clamped


def typed(model: ModelProto, path: Path, *, finite: bool) -> tuple[ModelProto, int]:
    """Return *model* in normal form (see :func:`normalize_forms`), with all types and shapes inferred.

    With *finite*, the model will be quantized by ranges: constants that mean infinity are replaced with numbers that
    integers can hold. Also returns how many were replaced. *model* is modified; *path* is its file, next to which are
    the weights that it lacks.

    Raises:
        StageError: the shapes in the model contradict each other, onnxruntime cannot load it, or it computes nothing in
            float32.
    """
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    if not standard_opset(model):
        # Trees and the like need none of the standard's operators, but onnxruntime's tools look for its version.
        model.opset_import.add(version=FIRST_OPSET)
    distinct_names(model)
    plain_constants(model)
    _forget_initializer_shapes(model.graph)
    model = with_shapes(model)
    if normalize_forms(model, path, to_integers=finite):
        model = with_shapes(model)
    clamped = clamp_certain(model, path) if finite else 0
    unknown = _outputs_without_type(model.graph)
    if unknown:
        _infer_with_onnxruntime(model, unknown)
    if not any(compute_nodes(model.graph)):
        raise StageError(
            "The model computes nothing in float32: there is nothing to calibrate or quantize.",
            advice="Build it with precision fp32, which leaves it as it is.",
        )
    return model, clamped


def _forget_initializer_shapes(graph: GraphProto) -> None:
    """Remove the shapes of initializers from value_info.

    The dynamo exporter writes them there too, and they become wrong as soon as a tool transposes a weight.
    """
    initializers = {tensor.name for tensor in graph.initializer}
    remove_items(graph.value_info, lambda value: value.name in initializers)


def _outputs_without_type(graph: GraphProto) -> list[str]:
    known = {value.name for value in (*graph.value_info, *graph.output) if value.type.WhichOneof("value")}
    return [name for node in graph.node for name in node.output if name and name not in known]


def _infer_with_onnxruntime(model: ModelProto, names: list[str]) -> None:
    """Add the types of the float tensors *names* as inferred by onnxruntime, which also knows its own operators.

    A session reports the types of its outputs; a model that it writes to disk has none.
    """
    probe = deepcopy(model)
    for name in names:
        probe.graph.output.add(name=name)
    onnx.save(probe, _PROBE_FILE)
    for argument in open_session(_PROBE_FILE, "the model").get_outputs():
        if argument.name in names and argument.type == "tensor(float)":
            # No dimensions: a scalar, or, more often, an unknown shape.
            shape = argument.shape or None
            model.graph.value_info.append(helper.make_tensor_value_info(argument.name, TensorProto.FLOAT, shape))


def float_tensors(graph: GraphProto) -> frozenset[str]:
    """Return the names of all float32 activations of the nodes of the graph itself, without initializers."""
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    return (float_values(graph) & used) - {tensor.name for tensor in graph.initializer}


def compute_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes that compute with floats, including nodes in subgraphs.

    Constants, type conversions, integer arithmetic on shapes and nodes that run graphs do not count.
    """
    return _compute_nodes(graph, frozenset())


def compute_nodes_inside(graph: GraphProto) -> Iterator[tuple[str, NodeProto]]:
    """Yield the nodes of :func:`compute_nodes` that are in subgraphs, each with the operator that runs its graph."""
    floats = float_values(graph)
    for node in graph.node:
        for inner in _graphs_in(node):
            for found in _compute_nodes(inner, floats):
                yield node.op_type, found


def _compute_nodes(graph: GraphProto, around: frozenset[str]) -> Iterator[NodeProto]:
    floats = around | float_values(graph)
    for node in graph.node:
        if inside := _graphs_in(node):
            for inner in inside:
                yield from _compute_nodes(inner, floats)
        elif node.op_type not in NOT_COMPUTING and any(name in floats for name in (*node.input, *node.output)):
            yield node


def float_values(graph: GraphProto) -> frozenset[str]:
    """Return the float32 values of *graph* itself and its float32 initializers, wherever they are read."""
    values = (*graph.input, *graph.output, *graph.value_info)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    return frozenset(floats.union(tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT))


def _graphs_in(node: NodeProto) -> list[GraphProto]:
    return [inner for attribute in node.attribute for inner in subgraphs(attribute)]
