"""dynamic and rtn: weights become integers, activations stay in float between the nodes, and no data is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.registry import IntegerOpsRegistry

from winml_dag.errors import StageError
from winml_dag.onnxmodel.protos import graphs_inside, graphs_of, nodes_of, remove_items, without_weights
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.coverage import Outcome, Quantized, outcomes_of_replaced, replaced_types
from winml_dag.stages.quantize.mixed import own_constants
from winml_dag.stages.quantize.selection import identity, nothing_left, select

_DYNAMIC_TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
_DYNAMIC_OPERATORS = frozenset({*IntegerOpsRegistry, "Gemm"})
_BLOCK_OPERATORS = frozenset({"MatMul", "Gemm"})
# Created from LSTM; its weights are always signed.
_LSTM = "DynamicQuantizeLSTM"
# The inputs whose constants onnxruntime transposes.
_TRANSPOSED = {"Gemm": (1,), "LSTM": (1, 2)}
_SMALLEST_BLOCK = 16
# onnxruntime does not change an operator that it does not know.
_HIDDEN_GEMM = "LeftOutGemm"
_LARGEST_EMBEDDED = 2**30
_MATMULS_FILE = Path("matmuls.onnx")
_DYNAMIC_FILE = Path("dynamic.onnx")


def quantize_dynamically(model: ModelProto, fields: QuantizeFields) -> Quantized:
    """Return *model* with 8-bit weights; activations become 8-bit while a node computes.

    Its tensors must have types and its nodes names; *model* is modified.

    Raises:
        StageError: weights have 16 bits, nodes or operators are unknown, or there is nothing to quantize.
    """
    weight_type = fields.weight_type
    if weight_type not in _DYNAMIC_TYPES:
        raise StageError(
            f"Dynamic quantization has 8-bit weights only, not {weight_type}.", advice="Use weight_type uint8 or int8."
        )
    before = without_weights(model)
    reasons = select(model.graph, fields)
    left_out = {node.name for node in nodes_of(model.graph) if identity(node) in reasons}
    left_out |= _move_conv_weights(model.graph)
    _gemms_to_matmuls(model, left_out)
    external = _save(model, _MATMULS_FILE)
    options = {} if fields.weight_symmetric is None else {"WeightSymmetric": fields.weight_symmetric}
    if any(graphs_inside(model.graph.node)):
        options["EnableSubgraph"] = True
    quantize_dynamic(
        _MATMULS_FILE,
        _DYNAMIC_FILE,
        # Every selected Gemm is a MatMul by now.
        op_types_to_quantize=sorted(_DYNAMIC_OPERATORS - {"Gemm"}),
        per_channel=bool(fields.per_channel),
        reduce_range=bool(fields.reduce_range),
        weight_type=_DYNAMIC_TYPES[weight_type],
        # onnxruntime turns every Gemm into a MatMul here, even an excluded one.
        nodes_to_exclude=sorted({*left_out, *(f"{name}_MatMul" for name in left_out)}),
        use_external_data_format=external,
        extra_options=options,
    )
    quantized = onnx.load(_DYNAMIC_FILE)
    types = {weight_type, *(["int8"] if any(node.op_type == _LSTM for node in nodes_of(quantized.graph)) else [])}
    outcomes = list(outcomes_of_replaced(before.graph, quantized.graph, reasons, _DYNAMIC_OPERATORS))
    weights = replaced_types(quantized.graph)
    _check(outcomes, weights, types, fields, _DYNAMIC_OPERATORS)
    return Quantized(quantized, outcomes, weight_type, "uint8", weights)


def quantize_weights(model: ModelProto, fields: QuantizeFields) -> Quantized:
    """Return *model* with each constant matrix of MatMul and Gemm rounded to nearest in blocks, as MatMulNBits.

    Its nodes must have names; *model* is modified.

    Raises:
        StageError: the block size is not supported, nodes are unknown, or there is nothing to quantize.
    """
    bits, block_size = fields.rtn_bits, fields.rtn_block_size
    if block_size is None or block_size < _SMALLEST_BLOCK or block_size & (block_size - 1):
        raise StageError(
            f"quant.rtn_block_size {block_size} is not a power of two from {_SMALLEST_BLOCK} on.",
            advice="Use 32 or 128.",
        )
    before = without_weights(model)
    reasons = select(model.graph, fields)
    left_out = {node.name for node in nodes_of(model.graph) if identity(node) in reasons}
    _gemms_to_matmuls(model, left_out)
    quantizer = MatMulNBitsQuantizer(
        model,
        bits=bits,
        block_size=block_size,
        is_symmetric=bool(fields.rtn_symmetric),
        accuracy_level=fields.rtn_accuracy_level,
        nodes_to_exclude=sorted(left_out),
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    quantized = quantizer.model.model
    for graph in graphs_of(quantized.graph):
        _drop_repeated_initializers(graph)
    outcomes = list(outcomes_of_replaced(before.graph, quantized.graph, reasons, _BLOCK_OPERATORS))
    weights = replaced_types(quantized.graph)
    _check(outcomes, weights, {f"uint{bits}"}, fields, _BLOCK_OPERATORS)
    return Quantized(quantized, outcomes, ", ".join(sorted(weights)), "float32", weights)


def _move_conv_weights(graph: GraphProto) -> set[str]:
    """Move each weight that only a Conv of a subgraph reads into that subgraph, where onnxruntime needs it.

    PyTorch's exporter puts all weights into the outermost graph. Returns the names of Conv nodes that have no constant
    weight in their own graph then: it is computed, or others read it too.
    """
    homes = {tensor.name: home for home in graphs_of(graph) for tensor in home.initializer}
    readers = Counter(name for node in nodes_of(graph) for name in node.input)
    without = set()
    for inner in graphs_of(graph):
        for node in inner.node:
            if node.op_type != "Conv":
                continue
            name = node.input[1]
            home = homes.get(name)
            if home is None or (home is not inner and readers[name] > 1):
                without.add(node.name)
            elif home is not inner:
                index = [tensor.name for tensor in home.initializer].index(name)
                inner.initializer.append(home.initializer[index])
                del home.initializer[index]
    return without


def _use(node: NodeProto, position: int) -> Hashable:
    return (node.name, position) if position in _TRANSPOSED.get(node.op_type, ()) else None


def _gemms_to_matmuls(model: ModelProto, left_out: Collection[str]) -> None:
    """Replace each Gemm that is not *left_out* with MatMul and Add, which onnxruntime's tools quantize.

    onnxruntime transposes the weights of Gemm and LSTM in place, whatever else reads them, so they get their own
    copies.
    """
    own_constants(model.graph, _use, inside=True)
    for node in nodes_of(model.graph):
        if node.op_type == "Gemm" and node.name in left_out:
            node.op_type = _HIDDEN_GEMM
    ONNXModel(model).replace_gemm_with_matmul()
    for node in nodes_of(model.graph):
        if node.op_type == _HIDDEN_GEMM:
            node.op_type = "Gemm"


def _save(model: ModelProto, path: Path) -> bool:
    """Write *model* for onnxruntime's tools, with its weights in another file if they are too large."""
    # Tensor by tensor: above 2 GiB, reading the size of the model is an error.
    size: int = sum(tensor.ByteSize() for graph in graphs_of(model.graph) for tensor in graph.initializer)
    external = size >= _LARGEST_EMBEDDED
    onnx.save(model, path, save_as_external_data=external)
    return external


def _drop_repeated_initializers(graph: GraphProto) -> None:
    """Drop duplicates: MatMulNBitsQuantizer writes a weight under the same name once for each node that reads it."""
    first = {tensor.name: tensor for tensor in reversed(graph.initializer)}
    remove_items(graph.initializer, lambda tensor: tensor is not first[tensor.name])


def _check(
    outcomes: Sequence[Outcome],
    weights: Mapping[str, int],
    wanted: Set[str],
    fields: QuantizeFields,
    ruled: Collection[str],
) -> None:
    if all(reason is not None for _, reason in outcomes):
        raise nothing_left(
            "The model has no weights that could be quantized: it computes with"
            f" {', '.join(sorted({op_type for op_type, _ in outcomes}))}, and this mode takes constant weights of"
            f" {', '.join(sorted(ruled))}.",
            fields,
        )
    if weights and not weights.keys() & wanted:
        raise StageError(f"Weights came out as {', '.join(sorted(weights))} instead of {', '.join(wanted)}.")
