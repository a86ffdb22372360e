"""onnxruntime's rules of static quantization for QNN, and what was measured to be better there."""

from __future__ import annotations

import sys
from collections.abc import Callable

from onnx import GraphProto, ModelProto, TensorProto
from onnxruntime.quantization import QuantType, StaticQuantConfig

from winml_dag.ep.registry import QNN
from winml_dag.errors import StageError
from winml_dag.recipe.precision import type_bits
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.mixed import SIGNED, TensorOverrides, node_overrides, weights_of, whole_tensors
from winml_dag.stages.quantize.selection import Selection, override_types

_BYTES = (QuantType.QUInt8, QuantType.QInt8)
_SIGNED_NARROW = (QuantType.QInt4, QuantType.QInt8)
# onnxruntime's rules for QNN make every range 1e-4 wide at least, and weights of 1e-6 lose 22 dB by that. With no least
# range, constants of zeros get the scale 1, and QNN fails on the model or is wrong.
_LEAST_RANGE = 1e-8


def qnn_settings(
    model: ModelProto,
    fields: QuantizeFields,
    weight_type: QuantType,
    activation_type: QuantType,
    selection: Selection,
) -> StaticQuantConfig:
    """onnxruntime's rules for QNN, and what was measured to be better.

    Weights of MatMul are per channel too: all-MiniLM-L6-v2 has feed-forward weights of up to 175 standard deviations.
    In w8a16, with a scale for the whole tensor, its embeddings have a cosine of 0.945 to those of the float model at
    worst; with one for each channel, 0.993. QNN takes 16-bit weights only when they are symmetric.
    """
    per_channel = bool(fields.per_channel)
    weight_symmetric = True if weight_type not in _BYTES else fields.weight_symmetric
    overrides = whole_tensors(model.graph, weight_type) if fields.per_channel else {}
    if weight_type in _SIGNED_NARROW:
        overrides |= _unsigned_norms(model.graph)
    overrides |= _slopes(model.graph, weight_type)
    if per_channel and selection.takes("MatMul"):
        overrides |= {
            name: [{"axis": 1, "quant_type": weight_type, "symmetric": True}] for name in _matmul_weights(model.graph)
        }
    _refuse_pairs(model.graph, fields)
    # Every other form of weights that are of another type than the rest stays on the CPU.
    overrides |= node_overrides(model.graph, fields, activation_type, True, per_channel=per_channel)
    settings = _qnn_rules()(
        model,
        None,
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        init_overrides=overrides,
        add_qtype_converts=False,  # the conversions that mixed types need are in the overrides
        activation_symmetric=bool(fields.activation_symmetric),
        weight_symmetric=weight_symmetric,
        op_types_to_quantize=selection.sorted_op_types,
        nodes_to_exclude=list(selection.nodes),
    )
    settings.extra_options["MinimumRealRange"] = _LEAST_RANGE
    return settings


def _qnn_rules() -> Callable[..., StaticQuantConfig]:
    """``get_qnn_qdq_config``, imported as if there were no torch.

    The package that it is in imports torch wherever that is installed, for a helper that nobody needs here: 1.2 s of
    the 2 s that it took to quantize a small model.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]  # how Python says that there is no such module
    try:
        from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
    finally:
        if hidden:
            del sys.modules["torch"]
    rules: Callable[..., StaticQuantConfig] = get_qnn_qdq_config
    return rules


def _refuse_pairs(graph: GraphProto, fields: QuantizeFields) -> None:
    """Raise StageError for a node whose own types leave it to the CPU."""
    constants = {tensor.name for tensor in graph.initializer}
    types = override_types(graph, fields.node_overrides or ())
    for node in graph.node:
        if node.name not in types or not any(name in constants for name, _ in weights_of(node)):
            continue
        weight = types[node.name].weight_type or str(fields.weight_type)
        activation = types[node.name].activation_type or str(fields.activation_type)
        reason = QNN.integers.cannot.get((type_bits(weight), type_bits(activation)))
        if reason is not None:
            raise StageError(
                f"quant.node_overrides: node {node.name!r} would have {weight} weights with {activation} activations;"
                f" QNN {reason}."
            )


def _unsigned_norms(graph: GraphProto) -> TensorOverrides:
    """The scales of LayerNormalization in uint8: with signed ones of 4 or 8 bits, QNN leaves these nodes to the CPU."""
    constants = {tensor.name for tensor in graph.initializer}
    return {
        node.input[1]: [{"quant_type": QuantType.QUInt8, "symmetric": False}]
        for node in graph.node
        if node.op_type == "LayerNormalization" and node.input[1] in constants
    }


def _slopes(graph: GraphProto, weight_type: QuantType) -> TensorOverrides:
    """The slopes of PRelu as weights: with those of 16 bits, QNN runs out of memory unless a Conv is before it."""
    constants = {tensor.name for tensor in graph.initializer}
    signed = weight_type in SIGNED
    return {
        node.input[1]: [{"quant_type": weight_type, "symmetric": signed}]
        for node in graph.node
        if node.op_type == "PRelu" and node.input[1] in constants
    }


def _matmul_weights(graph: GraphProto) -> list[str]:
    """Matrices that are the right side of MatMul and nothing else.

    onnxruntime's rules leave them per tensor for QNN, which takes them per channel as well, provided that they are
    symmetric: with asymmetric ones these nodes stay on the CPU (QNN SDK 2.51).
    """
    matrices = [t.name for t in graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT]
    uses: dict[str, set[tuple[str, int]]] = {name: set() for name in matrices}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in uses:
                uses[name].add((node.op_type, position))
    return [name for name in matrices if uses[name] == {("MatMul", 1)}]
