"""dynamic and rtn: weights become integers, activations stay in float between the nodes, and no data is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, NodeProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.registry import IntegerOpsRegistry

from winml_dag.errors import StageError
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.census import Census, count_replaced
from winml_dag.stages.quantize.selection import Selection, identity, select

_DYNAMIC_TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
_DYNAMIC_OPERATORS = frozenset({*IntegerOpsRegistry, "Gemm"})
_SMALLEST_BLOCK = 16
# What onnxruntime does not know, it leaves alone.
_HIDDEN_GEMM = "LeftOutGemm"
_LARGEST_EMBEDDED = 2**30
_MATMULS_FILE = Path("matmuls.onnx")
_DYNAMIC_FILE = Path("dynamic.onnx")


def quantize_dynamically(model: ModelProto, before: ModelProto, fields: QuantizeFields) -> tuple[ModelProto, Census]:
    """*model*, whose tensors must have types and nodes names, with 8-bit weights; activations become 8-bit while a node
    computes.

    *before* is the same model, which may be without its external weights; *model* is changed on the way.

    Raises:
        StageError: for 16-bit weights, unknown nodes or operators, or when there is nothing to quantize.
    """
    weight_type = fields.weight_type
    if weight_type not in _DYNAMIC_TYPES:
        raise StageError(
            f"Dynamic quantization has 8-bit weights only, not {weight_type}.", advice="Use weight_type uint8 or int8."
        )
    selection = select(before.graph, fields)
    left_out = {*selection.nodes, *_not_taken(model.graph, selection)}
    _gemms_to_matmuls(model, left_out)
    op_types = {op_type for op_type in _DYNAMIC_OPERATORS if selection.takes(op_type)}
    external = _save(model, _MATMULS_FILE)
    options = {} if fields.weight_symmetric is None else {"WeightSymmetric": fields.weight_symmetric}
    quantize_dynamic(
        _MATMULS_FILE,
        _DYNAMIC_FILE,
        # What was a Gemm is a MatMul by now.
        op_types_to_quantize=sorted({*op_types, "MatMul"} - {"Gemm"}),
        per_channel=bool(fields.per_channel),
        reduce_range=bool(fields.reduce_range),
        weight_type=_DYNAMIC_TYPES[weight_type],
        # onnxruntime makes a MatMul of any Gemm here, also of one that is left out.
        nodes_to_exclude=sorted({*left_out, *(f"{name}_MatMul" for name in left_out)}),
        use_external_data_format=external,
        extra_options=options,
    )
    quantized = onnx.load(_DYNAMIC_FILE)
    why = _why(before.graph, selection, _DYNAMIC_OPERATORS)
    return quantized, _checked(count_replaced(before.graph, quantized.graph, why), weight_type)


def quantize_weights(model: ModelProto, before: ModelProto, fields: QuantizeFields) -> tuple[ModelProto, Census]:
    """*model*, whose nodes must have names, with each constant matrix of MatMul and Gemm rounded to nearest in blocks,
    as MatMulNBits.

    *before* is the same model, which may be without its external weights; *model* is changed on the way.

    Raises:
        StageError: for widths or block sizes that there are not, unknown nodes, or when there is nothing to quantize.
    """
    bits, block_size = fields.rtn_bits, fields.rtn_block_size
    if bits not in (4, 8):
        raise StageError(f"rtn has weights of 4 or 8 bits, not {bits}.", advice="Change quant.rtn_bits.")
    if block_size is None or block_size < _SMALLEST_BLOCK or block_size & (block_size - 1):
        raise StageError(
            f"quant.rtn_block_size {block_size} is not a power of two from {_SMALLEST_BLOCK} on.",
            advice="Use 32 or 128.",
        )
    selection = select(before.graph, fields)
    left_out = {*selection.nodes, *_not_taken(model.graph, selection)}
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
    _drop_repeated_initializers(quantized.graph)
    why = _why(before.graph, selection, frozenset({"MatMul", "Gemm"}))
    return quantized, _checked(count_replaced(before.graph, quantized.graph, why), f"uint{bits}")


def _not_taken(graph: GraphProto, selection: Selection) -> set[str]:
    """MatMul or Gemm nodes that the config does not want: later they all are MatMul, so they are left out by name."""
    return {
        node.name for node in graph.node if node.op_type in ("MatMul", "Gemm") and not selection.takes(node.op_type)
    }


def _why(graph: GraphProto, selection: Selection, ruled: Collection[str]) -> Callable[[NodeProto], str]:
    """What tells why a node stayed as it was, where there are rules for the operators *ruled*."""
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def why(node: NodeProto) -> str:
        if (chosen := selection.reasons.get(identity(node))) is not None:
            return chosen
        if node.op_type not in ruled:
            return "no rule for this operator"
        found = [constants[name] for name in node.input if name in constants]
        if not found:
            return "its weight is not constant"
        if all(len(tensor.dims) != 2 for tensor in found):
            return "its weight is not a matrix"
        return "onnxruntime left it in float"

    return why


def _gemms_to_matmuls(model: ModelProto, left_out: Collection[str]) -> None:
    """Make each Gemm that is not *left_out* a MatMul and an Add, which is what onnxruntime's tools quantize.

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
    for node in model.graph.node:
        if node.op_type == "Gemm" and node.name in left_out:
            node.op_type = _HIDDEN_GEMM
    ONNXModel(model).replace_gemm_with_matmul()
    for node in model.graph.node:
        if node.op_type == _HIDDEN_GEMM:
            node.op_type = "Gemm"


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
