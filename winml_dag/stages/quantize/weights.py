"""dynamic and rtn: weights become integers, activations stay in float between the nodes, and no data is needed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.registry import IntegerOpsRegistry

from winml_dag.errors import StageError
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.census import Census, count_replaced
from winml_dag.stages.quantize.selection import check_op_types, excluded_nodes

RTN_BITS = 4
RTN_BLOCK_SIZE = 128

_DYNAMIC_TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
_SMALLEST_BLOCK = 16
_LARGEST_EMBEDDED = 2**30
_MATMULS_FILE = Path("matmuls.onnx")
_DYNAMIC_FILE = Path("dynamic.onnx")


def quantize_dynamically(model: ModelProto, before: ModelProto, fields: QuantizeFields) -> tuple[ModelProto, Census]:
    """*model*, whose tensors must have types, with 8-bit weights; activations become 8-bit while a node computes.

    *before* is the same model, which may be without its external weights; *model* is changed on the way.

    Raises:
        StageError: for 16-bit weights, unknown nodes or operators, or when there is nothing to quantize.
    """
    weight_type = fields.weight_type or "int8"
    if weight_type not in _DYNAMIC_TYPES:
        raise StageError(
            f"Dynamic quantization has 8-bit weights only, not {weight_type}.", advice="Use weight_type uint8 or int8."
        )
    op_types = fields.op_types_to_quantize or tuple(sorted({*IntegerOpsRegistry, "Gemm"}))
    check_op_types(model.graph, op_types, "op_types_to_quantize")
    _name_matmuls(model.graph)
    excluded = {*excluded_nodes(model.graph, fields.nodes_to_exclude or ()), *_of_other_types(model.graph, op_types)}
    excluded = _gemms_to_matmuls(model, excluded)
    external = _save(model, _MATMULS_FILE)
    options = {} if fields.weight_symmetric is None else {"WeightSymmetric": fields.weight_symmetric}
    quantize_dynamic(
        _MATMULS_FILE,
        _DYNAMIC_FILE,
        op_types_to_quantize=sorted({*op_types, "MatMul"}),
        per_channel=bool(fields.per_channel),
        reduce_range=bool(fields.reduce_range),
        weight_type=_DYNAMIC_TYPES[weight_type],
        nodes_to_exclude=sorted(excluded),
        use_external_data_format=external,
        extra_options=options,
    )
    quantized = onnx.load(_DYNAMIC_FILE)
    return quantized, _checked(count_replaced(before.graph, quantized.graph), weight_type)


def quantize_weights(model: ModelProto, before: ModelProto, fields: QuantizeFields) -> tuple[ModelProto, Census]:
    """*model* with each constant matrix of MatMul and Gemm rounded to nearest in blocks, as MatMulNBits.

    *before* is the same model, which may be without its external weights; *model* is changed on the way.

    Raises:
        StageError: for widths or block sizes that there are not, unknown nodes, or when there is nothing to quantize.
    """
    bits, block_size = fields.rtn_bits or RTN_BITS, fields.rtn_block_size or RTN_BLOCK_SIZE
    if bits not in (4, 8):
        raise StageError(f"rtn has weights of 4 or 8 bits, not {bits}.", advice="Change quant.rtn_bits.")
    if block_size < _SMALLEST_BLOCK or block_size & (block_size - 1):
        raise StageError(
            f"quant.rtn_block_size {block_size} is not a power of two from {_SMALLEST_BLOCK} on.",
            advice="Use 32 or 128.",
        )
    _name_matmuls(model.graph)
    excluded = _gemms_to_matmuls(model, set(excluded_nodes(model.graph, fields.nodes_to_exclude or ())))
    quantizer = MatMulNBitsQuantizer(
        model,
        bits=bits,
        block_size=block_size,
        is_symmetric=fields.rtn_symmetric is not False,
        accuracy_level=fields.rtn_accuracy_level,
        nodes_to_exclude=sorted(excluded),
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    quantized = quantizer.model.model
    _drop_repeated_initializers(quantized.graph)
    return quantized, _checked(count_replaced(before.graph, quantized.graph), f"uint{bits}")


def _of_other_types(graph: GraphProto, op_types: Iterable[str]) -> set[str]:
    """MatMul or Gemm nodes when only the other one is wanted: later they all are MatMul."""
    left = {"MatMul", "Gemm"} - set(op_types)
    return {node.name for node in graph.node if node.op_type in left}


def _gemms_to_matmuls(model: ModelProto, excluded: set[str]) -> set[str]:
    """Make each Gemm a MatMul and an Add, which is what onnxruntime's tools quantize.

    Returns the names in *excluded*, and those that Gemms among them have got.

    onnxruntime transposes the weight where it is, whoever else reads it: so each Gemm first gets a weight of its own.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = [name for node in model.graph.node for name in node.input]
    for index, node in enumerate(model.graph.node):
        if node.op_type == "Gemm" and node.input[1] in weights and uses.count(node.input[1]) > 1:
            own = model.graph.initializer.add()
            own.CopyFrom(weights[node.input[1]])
            own.name = f"{own.name}_of_node_{index}"
            node.input[1] = own.name
    gemms = {node.name for node in model.graph.node if node.op_type == "Gemm"}
    ONNXModel(model).replace_gemm_with_matmul()
    return excluded | {f"{name}_MatMul" for name in excluded & gemms}


def _name_matmuls(graph: GraphProto) -> None:
    """A node can only be left out by its name."""
    for index, node in enumerate(graph.node):
        if node.op_type in ("MatMul", "Gemm") and not node.name:
            node.name = f"{node.op_type}_of_node_{index}"


def _save(model: ModelProto, path: Path) -> bool:
    """Write *model* for onnxruntime's tools, with its weights apart when they need that."""
    # Tensor by tensor: above 2 GiB, asking for the size of the model is an error.
    size: int = sum(tensor.ByteSize() for tensor in model.graph.initializer)
    external = size >= _LARGEST_EMBEDDED
    onnx.save(model, path, save_as_external_data=external)
    return external


def _drop_repeated_initializers(graph: GraphProto) -> None:
    """MatMulNBitsQuantizer writes a weight once for each node that reads it, always under the same name."""
    seen: dict[str, int] = {}
    for index, tensor in enumerate(graph.initializer):
        seen.setdefault(tensor.name, index)
    if len(seen) == len(graph.initializer):
        return
    kept = [graph.initializer[index] for index in seen.values()]
    copies = []
    for tensor in kept:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copies.append(copy)
    del graph.initializer[:]
    graph.initializer.extend(copies)


def _checked(census: Census, weight_type: str) -> Census:
    if not census.quantized:
        raise StageError(
            "The model has no weights that could be quantized.",
            advice="This mode takes constant matrices; see quant.op_types_to_quantize and quant.nodes_to_exclude.",
        )
    if census.weights and weight_type not in census.weights:
        raise StageError(f"Weights came out as {', '.join(census.weights)} instead of {weight_type}.")
    return census
