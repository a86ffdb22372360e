"""fp16: weights and activations become float16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from winml_dag.errors import StageError
from winml_dag.onnxmodel.protos import graphs_inside, nodes_of, read_inside, remove_items, replace_items
from winml_dag.stages.float_model import compute_nodes
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.coverage import Quantized
from winml_dag.stages.quantize.selection import NOT_CHOSEN, identity, matching_op_types, nothing_left, select

# The names that onnxruntime's converter gives the casts around nodes that stay in float32.
_TO_HALF, _TO_FLOAT, _INPUT_TO_HALF = "_cast_to_fp16_node", "_cast_to_fp32_node", "graph_input_cast"

# These have a float16 form in ONNX, but onnxruntime has no kernel for it, or the converter leaves their attribute of
# the type of the output.
_WITHOUT_KERNEL = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "MeanVarianceNormalization", "MelWeightMatrix"),
        *("HannWindow", "HammingWindow", "BlackmanWindow"),
    }
)


def convert_to_half(model: ModelProto, fields: QuantizeFields) -> Quantized:
    """Convert *model*, whose tensors must have types, to float16 in place.

    Constants beyond float16's range become its largest number. Operators that have no float16 form stay in float32
    whatever ``fp16_op_block_list`` is: the list adds to them.

    Raises:
        StageError: nodes or operators are unknown, or nothing is left to convert.
    """
    reasons = float_reasons(model, fields)
    outcomes = [(node.op_type, reasons.get(identity(node))) for node in compute_nodes(model.graph)]
    if all(reason is not None for _, reason in outcomes):
        raise nothing_left("No node of the model could be converted to float16.", fields)
    # A node that runs graphs has no type of its own: the nodes of its graphs stay in float32 instead.
    computing = (node for node in nodes_of(model.graph) if not any(graphs_inside([node])))
    half = convert_float_to_float16(
        model,
        keep_io_types=bool(fields.fp16_keep_io_types),
        # The types are already inferred, also for operators outside the standard; above 2 GiB inference in memory
        # fails.
        disable_shape_infer=True,
        op_block_list=[],
        node_block_list=[node.name for node in computing if identity(node) in reasons],
    )
    _tidy_casts(half.graph)
    _place_casts(half.graph)
    interface = (*half.graph.input, *half.graph.output)
    left = [value.name for value in interface if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    if left and not fields.fp16_keep_io_types:
        raise StageError(f"{left[0]!r} stayed in float32 although fp16_keep_io_types is false.")
    return Quantized(half, outcomes, "float16", "float16")


def _tidy_casts(graph: GraphProto) -> None:
    """Connect float32 nodes directly in float32, and read each tensor through one cast.

    onnxruntime's converter adds casts around each such node separately. A value that overflows float16 between two of
    them would still overflow, and two nodes that read one tensor get two casts of one name, which no session loads. It
    adds all of them to the outermost *graph*, even for nodes of subgraphs.
    """
    inner = list(graphs_inside(graph.node))
    rounded = {node.output[0]: node.input[0] for node in graph.node if node.name.startswith(_INPUT_TO_HALF)}
    rounded |= {node.output[0]: node.input[0] for node in graph.node if node.name.endswith(_TO_HALF)}
    widened = {node.output[0]: node.input[0] for node in graph.node if node.name.endswith(_TO_FLOAT)}
    exact = {output: rounded[source] for output, source in widened.items() if source in rounded}
    for node in (node for each in (graph, *inner) for node in each.node):
        for position, name in enumerate(node.input):
            if name in exact:
                node.input[position] = exact[name]
    read = {value.name for value in graph.output} | read_inside(graph.node)
    read |= {name for node in graph.node if node.output[0] not in widened for name in node.input}
    read |= {source for output, source in widened.items() if output in read}
    kept: list[NodeProto] = []
    made: set[str] = set()
    for node in graph.node:
        output = node.output[0]
        if output not in rounded.keys() | widened.keys() or (output in read and output not in made):
            kept.append(node)
        made.add(output)
    replace_items(graph.node, map(deepcopy, kept))


def _place_casts(graph: GraphProto) -> None:
    """Move each cast from the outermost *graph* to the graph that defines the value that it converts."""
    homes = {
        name: inner
        for inner in graphs_inside(graph.node)
        for names in (
            (value.name for value in inner.input),
            (tensor.name for tensor in inner.initializer),
            (name for node in inner.node for name in node.output),
        )
        for name in names
    }
    moved = {node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] in homes}
    if not moved:
        return
    for node in graph.node:
        if node.output[0] in moved:
            homes[node.input[0]].node.add().CopyFrom(node)
    remove_items(graph.node, lambda node: node.output[0] in moved)
    remove_items(graph.value_info, lambda value: value.name in moved or value.name in homes)


def _has_half(node: NodeProto, opsets: Mapping[str, int]) -> bool:
    """Return whether *node* can have float16 in the place of every float32."""
    if node.op_type in DEFAULT_OP_BLOCK_LIST or node.op_type in _WITHOUT_KERNEL:
        return False
    if node.op_type == "Resize":
        return True  # the converter casts its scales
    try:
        schema = defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except defs.SchemaError:
        return True  # an operator of onnxruntime itself
    allowed = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}

    def takes(parameters: Sequence[defs.OpSchema.FormalParameter], at: int) -> bool:
        text = parameters[min(at, len(parameters) - 1)].type_str
        types = allowed.get(text, [text])
        return "tensor(float)" not in types or "tensor(float16)" in types

    sides = (schema.inputs, node.input), (schema.outputs, node.output)
    return all(takes(parameters, at) for parameters, names in sides for at, name in enumerate(names) if name)


def float_reasons(model: ModelProto, fields: QuantizeFields) -> dict[str, str]:
    """Return why nodes stay in float32, by identity. Excluding a node that runs graphs excludes their nodes, too."""
    graph, opsets = model.graph, {each.domain: each.version for each in model.opset_import}
    listed = matching_op_types(graph, fields.fp16_op_block_list or (), "fp16_op_block_list")
    nodes = list(nodes_of(graph))
    reasons = {}
    for node in nodes:
        if not _has_half(node, opsets):
            reasons[identity(node)] = "kept in float32: no float16 form"
        elif node.op_type in listed:
            reasons[identity(node)] = "excluded by quant.fp16_op_block_list"
    reasons |= select(graph, fields)
    for node in nodes:
        why = reasons.get(identity(node), NOT_CHOSEN)
        if why != NOT_CHOSEN:
            reasons.update((identity(found), why) for each in graphs_inside([node]) for found in each.node)
    return reasons
