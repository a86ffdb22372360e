"""static: Q and DQ nodes around everything, with scales from the ranges that calibrate measured.

onnxruntime's QDQQuantizer is used without its ``quantize_static``, which raises the opset of a model to 21 for 16-bit
types, by rewriting nodes that the ranges know nothing of. Below opset 21 such Q and DQ nodes are of ``com.microsoft``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto
from onnxruntime.quantization import QDQQuantizer, QuantType, StaticQuantConfig, get_qdq_config
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from onnxruntime.quantization.quant_utils import add_infer_metadata

from winml_dag.errors import StageError
from winml_dag.stages.float_model import float_tensors
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.census import Census, count_qdq
from winml_dag.stages.quantize.selection import check_op_types, excluded_nodes
from winml_dag.stages.ranges import Ranges

INTEGER_TYPES = {
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint16": QuantType.QUInt16,
    "int16": QuantType.QInt16,
}
_BYTES = (QuantType.QUInt8, QuantType.QInt8)


@dataclass(frozen=True)
class Insertion:
    """A QDQ model, how long inserting Q and DQ took, and what became of the nodes."""

    model: ModelProto
    seconds: float
    census: Census


def insert_qdq(model: ModelProto, before: ModelProto, ranges: Ranges, fields: QuantizeFields, rules: str) -> Insertion:
    """The QDQ form of *model*, whose tensors must have types; *model* is changed on the way.

    *before* is the same model, which may be without its external weights.

    Raises:
        StageError: for types that do not go together, a tensor without a range, or another outcome than was asked for.
    """
    _require_ranges(before.graph, ranges)
    # Not of the model in memory: above 2 GiB, asking for its size is an error.
    settings = qdq_settings(before, fields, rules)
    # Without this mark the quantizer infers shapes again, by way of files in the system's temporary folder.
    add_infer_metadata(model)
    started = time.perf_counter()
    quantizer = QDQQuantizer(
        model,
        settings.per_channel,
        settings.reduce_range,
        settings.weight_type,
        settings.activation_type,
        _tensors_data(ranges),
        settings.nodes_to_quantize,
        settings.nodes_to_exclude,
        # In the order of a set otherwise.
        sorted(settings.op_types_to_quantize),
        settings.extra_options,
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    seconds = time.perf_counter() - started
    census = count_qdq(before.graph, quantizer.model.model.graph)
    _check(census, fields)
    return Insertion(quantizer.model.model, seconds, census)


def qdq_settings(model: ModelProto, fields: QuantizeFields, rules: str) -> StaticQuantConfig:
    """What onnxruntime's quantizer is told: the config's fields, and what the *rules* add for their provider.

    Raises:
        StageError: for unknown rules, types, operators or nodes, and for types that do not go together.
    """
    weight_type, activation_type = _type(fields, "weight_type"), _type(fields, "activation_type")
    if activation_type is QuantType.QInt8 and weight_type is QuantType.QUInt8:
        raise StageError(
            "onnxruntime has no kernels for activation_type int8 with weight_type uint8.",
            advice="Use weight_type int8, or activation_type uint8.",
        )
    op_types = list(fields.op_types_to_quantize or ())
    check_op_types(model.graph, op_types, "op_types_to_quantize")
    excluded = list(excluded_nodes(model.graph, fields.nodes_to_exclude or ()))
    if rules == "qnn":
        settings = _qnn_settings(model, fields, weight_type, activation_type, op_types, excluded)
    elif rules == "onnxruntime":
        settings = get_qdq_config(
            model,
            None,
            activation_type=activation_type,
            weight_type=weight_type,
            activation_symmetric=bool(fields.activation_symmetric),
            weight_symmetric=fields.weight_symmetric,
            per_channel=bool(fields.per_channel),
            op_types_to_quantize=op_types or None,
            nodes_to_exclude=excluded,
        )
    else:
        raise StageError(f"Unknown quantization rules {rules!r}.", advice="Known are: qnn, onnxruntime.")
    settings.reduce_range = bool(fields.reduce_range)
    return settings


def _qnn_settings(
    model: ModelProto,
    fields: QuantizeFields,
    weight_type: QuantType,
    activation_type: QuantType,
    op_types: list[str],
    excluded: list[str],
) -> StaticQuantConfig:
    """onnxruntime's rules for QNN, and what was measured to be better.

    Weights are per channel unless the config says no: all-MiniLM-L6-v2 has feed-forward weights of up to 175 standard
    deviations. In w8a16, with a scale for the whole tensor, its embeddings have a cosine of 0.945 to those of the float
    model at worst; with one for each channel, 0.993. QNN takes 16-bit weights only when they are symmetric.
    """
    per_channel = fields.per_channel is not False
    weight_symmetric = True if weight_type not in _BYTES else fields.weight_symmetric
    overrides = {}
    if per_channel and "MatMul" in (op_types or ["MatMul"]):
        overrides = {
            name: [{"axis": 1, "quant_type": weight_type, "symmetric": True}] for name in _matmul_weights(model.graph)
        }
    return get_qnn_qdq_config(
        model,
        None,
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        init_overrides=overrides,
        add_qtype_converts=False,  # for activations of mixed types, of which there are none
        activation_symmetric=bool(fields.activation_symmetric),
        weight_symmetric=weight_symmetric,
        op_types_to_quantize=op_types or None,
        nodes_to_exclude=excluded,
    )


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


def _type(fields: QuantizeFields, field: str) -> QuantType:
    name = getattr(fields, field)
    if name not in INTEGER_TYPES:
        raise StageError(f"quant.{field} {name!r} is not an integer type.", advice=f"Use: {', '.join(INTEGER_TYPES)}.")
    return INTEGER_TYPES[name]


def _require_ranges(graph: GraphProto, ranges: Ranges) -> None:
    missing = sorted(float_tensors(graph) - ranges.bounds.keys())
    if missing:
        raise StageError(
            f"The activation ranges say nothing of {len(missing)} tensors of the model, such as {missing[0]!r}.",
            advice="Calibrate this very model.",
        )


def _tensors_data(ranges: Ranges) -> TensorsData:
    bounds = {
        name: (np.array([low], np.float32), np.array([high], np.float32)) for name, (low, high) in ranges.bounds.items()
    }
    # The method matters only to onnxruntime's own files; bounds are bounds.
    return TensorsData(CalibrationMethod.MinMax, bounds)


def _check(census: Census, fields: QuantizeFields) -> None:
    """What was asked for is there: the tools skip what they cannot do."""
    if not census.quantized:
        raise StageError(
            "No node of the model could be quantized.",
            advice="See quant.op_types_to_quantize and quant.nodes_to_exclude.",
        )
    if set(census.activations) != {fields.activation_type}:
        raise StageError(f"Activations came out as {_texts(census.activations)} instead of {fields.activation_type}.")
    if census.weights and fields.weight_type not in census.weights:
        raise StageError(f"Weights came out as {_texts(census.weights)} instead of {fields.weight_type}.")


def _texts(counts: object) -> str:
    return ", ".join(counts) if isinstance(counts, dict) and counts else "nothing"
