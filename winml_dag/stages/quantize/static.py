"""static: insert Q and DQ nodes everywhere, with scales from the ranges that calibrate measured.

onnxruntime's QDQQuantizer is used without its ``quantize_static``, which raises the opset of a model to 21 for 16-bit
types by rewriting nodes, for which there are no ranges. Below opset 21 such Q and DQ nodes are in ``com.microsoft``;
below opset 13, so are all in a model with a scale for each channel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnxruntime.quantization import QDQQuantizer, QuantType, StaticQuantConfig, get_qdq_config
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.quant_utils import add_infer_metadata

from winml_dag.ep.registry import QNN
from winml_dag.errors import StageError
from winml_dag.onnxmodel.facts import CHANNEL_AXES, standard_opset
from winml_dag.onnxmodel.protos import constant_tensors
from winml_dag.recipe.precision import type_bits
from winml_dag.stages.float_model import compute_nodes_inside, float_tensors
from winml_dag.stages.normalize import FIRST_OPSET
from winml_dag.stages.quantize import QuantizeFields, QuantizeTarget
from winml_dag.stages.quantize.coverage import Coverage, count_qdq
from winml_dag.stages.quantize.mixed import (
    INTEGER_TYPES,
    SIGNED,
    WEIGHT_TYPES,
    TensorOverrides,
    node_overrides,
    own_constants,
    use_of,
    weights_of,
    whole_tensors,
)
from winml_dag.stages.quantize.outliers import Tamed, divide_in_place_of_reciprocals, tame_outliers
from winml_dag.stages.quantize.selection import Selection, nothing_left, override_types, select
from winml_dag.stages.ranges import Ranges

# onnxruntime's rules of static quantization for QNN, with changes that measured better.

_BYTES = (QuantType.QUInt8, QuantType.QInt8)
_SIGNED_NARROW = (QuantType.QInt4, QuantType.QInt8)
# onnxruntime's rules for QNN make every range at least 1e-4 wide, which costs weights of 1e-6 22 dB. Without a minimum
# range, constants of zeros get the scale 1, and QNN fails on the model or is wrong.
_LEAST_RANGE = 1e-8


def qnn_settings(
    model: ModelProto,
    fields: QuantizeFields,
    weight_type: QuantType,
    activation_type: QuantType,
    selection: Selection,
) -> StaticQuantConfig:
    """Return onnxruntime's rules for QNN, with changes that measured better.

    Weights of MatMul are per channel too: all-MiniLM-L6-v2 has feed-forward weights of up to 175 standard deviations.
    In w8a16, the worst cosine of its embeddings to those of the float model is 0.945 with one scale for the whole
    tensor, and 0.993 with one for each channel. QNN takes 16-bit weights only if they are symmetric.
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
    # Any other form of weights that differ in type from the default stays on the CPU.
    overrides |= node_overrides(model.graph, fields, activation_type, True, per_channel=per_channel)
    settings = _qnn_rules()(
        model,
        None,
        activation_type=activation_type,
        weight_type=weight_type,
        per_channel=per_channel,
        init_overrides=overrides,
        add_qtype_converts=False,  # the conversions for mixed types are in the overrides
        activation_symmetric=bool(fields.activation_symmetric),
        weight_symmetric=weight_symmetric,
        op_types_to_quantize=selection.sorted_op_types,
        nodes_to_exclude=list(selection.nodes),
    )
    settings.extra_options["MinimumRealRange"] = _LEAST_RANGE
    return settings


def _qnn_rules() -> Callable[..., StaticQuantConfig]:
    """Return ``get_qnn_qdq_config``, imported with torch hidden.

    Its package imports torch if that is installed, for a helper that is not used here: 1.2 s of the 2 s that it took to
    quantize a small model.
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
    """Raise StageError for a node whose types in the config would leave it to the CPU."""
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
    """Return overrides for LayerNormalization scales: with signed 4-bit or 8-bit ones, QNN leaves the nodes to the CPU.

    They are in uint8 instead.
    """
    constants = {tensor.name for tensor in graph.initializer}
    return {
        node.input[1]: [{"quant_type": QuantType.QUInt8, "symmetric": False}]
        for node in graph.node
        if node.op_type == "LayerNormalization" and node.input[1] in constants
    }


def _slopes(graph: GraphProto, weight_type: QuantType) -> TensorOverrides:
    """Return overrides for PRelu slopes: with 16 bits, QNN runs out of memory unless a Conv is before the node.

    The slopes have the type of weights instead.
    """
    constants = {tensor.name for tensor in graph.initializer}
    signed = weight_type in SIGNED
    return {
        node.input[1]: [{"quant_type": weight_type, "symmetric": signed}]
        for node in graph.node
        if node.op_type == "PRelu" and node.input[1] in constants
    }


def _matmul_weights(graph: GraphProto) -> list[str]:
    """Return the matrices that are only used as the right side of MatMul.

    onnxruntime's rules leave them per tensor for QNN. QNN also takes them per channel if they are symmetric: with
    asymmetric ones these nodes stay on the CPU (QNN SDK 2.51).
    """
    matrices = [t.name for t in graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT]
    uses: dict[str, set[tuple[str, int]]] = {name: set() for name in matrices}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in uses:
                uses[name].add((node.op_type, position))
    return [name for name in matrices if uses[name] == {("MatMul", 1)}]


# The first opset of the standard with Q and DQ.
_INTEGERS_FROM = 10


@dataclass(frozen=True)
class Insertion:
    """A QDQ model, the time to insert Q and DQ, the coverage of the nodes, and how outliers were treated."""

    model: ModelProto
    seconds: float
    coverage: Coverage
    tamed: Tamed


def insert_qdq(
    model: ModelProto, before: ModelProto, ranges: Ranges, fields: QuantizeFields, target: QuantizeTarget
) -> Insertion:
    """Return the QDQ form of *model*, whose tensors must have types and nodes names; *model* is modified.

    *before* is the same model, possibly without its external weights.

    Raises:
        StageError: types cannot be combined, a tensor has no range, or the result differs from what was requested.
    """
    opset = standard_opset(before)
    if opset < _INTEGERS_FROM:
        raise StageError(
            f"The model is written in opset {opset}, and ONNX has integer operators from opset {_INTEGERS_FROM} on.",
            advice="Export it with opset 17 or later, or convert it with onnx.version_converter.",
        )
    _require_ranges(before.graph, ranges)
    graphs = (model.graph, before.graph)
    _split_constants(graphs, fields)
    if target.rules == "qnn":
        divide_in_place_of_reciprocals(graphs, fields)
    tamed = tame_outliers(graphs, ranges, fields, mixes_widths=bool(target.mixes_widths))
    ranges, fields = _fine_biases(model.graph, _whole_softmax(model.graph, tamed.ranges)), tamed.fields
    if fields.node_overrides:
        _split_constants(graphs, fields)
    # Not of the model in memory: above 2 GiB, reading its size is an error.
    settings = qdq_settings(before, fields, target.rules)
    # Without this mark the quantizer infers shapes again, through files in the system's temporary folder.
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
        # Sorted: a set has no stable order.
        sorted(settings.op_types_to_quantize),
        settings.extra_options,
    )
    try:
        quantizer.quantize_model()
    except AssertionError as error:
        raise _no_numbers(before.graph, model.graph) or error from error
    quantizer.model.topological_sort()
    seconds = time.perf_counter() - started
    coverage = count_qdq(before.graph, quantizer.model.model.graph, select(before.graph, fields).reasons)
    _check(coverage, fields, before.graph)
    return Insertion(quantizer.model.model, seconds, coverage, tamed)


def _no_numbers(*graphs: GraphProto) -> StageError | None:
    """Return the error for a constant with NaN, for which the quantizer reports only a missing scale."""
    for tensor in (tensor for graph in graphs for tensor in graph.initializer):
        inside = tensor.data_type == TensorProto.FLOAT and tensor.data_location != TensorProto.EXTERNAL
        if inside and np.isnan(numpy_helper.to_array(tensor)).any():
            return StageError(
                f"The constant {tensor.name!r} has values that are not a number (NaN), which no integers stand for.",
                advice="Leave the nodes that read it in float: quant.nodes_to_exclude.",
            )
    return None


def _whole_softmax(graph: GraphProto, ranges: Ranges) -> Ranges:
    """Return *ranges* with 0 to 1 for outputs of Softmax, even if only their readers are quantized.

    onnxruntime's quantizer does that for a Softmax that it quantizes itself. On the CPU, onnxruntime fuses any Softmax
    between DQ and Q to one integer operator, which writes 0 for values above the range instead of its upper end: a
    classifier that was more certain than in calibration (0.97, with at most 0.86 before) output 0.0 for its first
    class.
    """
    made = {node.output[0] for node in graph.node if node.op_type == "Softmax"}
    return replace(ranges, bounds={**ranges.bounds, **dict.fromkeys(ranges.bounds.keys() & made, (0.0, 1.0))})


def _fine_biases(graph: GraphProto, ranges: Ranges) -> Ranges:
    """Return *ranges* with 0 to 1 for tensors that were 0 on all samples and whose product gets a bias.

    onnxruntime's quantizer gives such a tensor the scale 1, as for a range of 0 to 255 or 65535, and the bias the
    tensor's scale times the weight's, so the bias is rounded to a few steps. Other tensors are not changed: QNN loses
    an operand of a Sub whose scale is 1000 times that of the result.
    """
    summed = {node.input[0] for node in graph.node if node.op_type in CHANNEL_AXES and len(node.input) > 2}
    zeros = [name for name in summed & ranges.bounds.keys() if ranges.bounds[name] == (0.0, 0.0)]
    return replace(ranges, bounds={**ranges.bounds, **dict.fromkeys(zeros, (0.0, 1.0))})


def _split_constants(graphs: Sequence[GraphProto], fields: QuantizeFields) -> None:
    """Split constants of *graphs*, whose nodes have names, if their readers need different types or scales."""
    selection = select(graphs[0], fields)
    own = override_types(graphs[0], fields.node_overrides or ())

    def use(node: NodeProto, position: int) -> Hashable:
        if not selection.takes(node.op_type) or node.name in selection.nodes:
            return None
        return (node.name, position) if node.name in own else use_of(node, position)

    for graph in graphs:
        own_constants(graph, use)


def qdq_settings(model: ModelProto, fields: QuantizeFields, rules: str | None) -> StaticQuantConfig:
    """Return the settings of onnxruntime's quantizer: the config's fields, and what the *rules* add for their provider.

    Raises:
        StageError: rules, types, operators or nodes are unknown, or types cannot be combined.
    """
    weight_type, activation_type = _type(fields, "weight_type"), _type(fields, "activation_type")
    if activation_type is QuantType.QInt8 and weight_type is QuantType.QUInt8:
        raise StageError(
            "onnxruntime has no kernels for activation_type int8 with weight_type uint8.",
            advice="Use weight_type int8, or activation_type uint8.",
        )
    selection = select(model.graph, fields)
    if selection.op_types is not None and not selection.op_types:
        _refuse_nothing(fields)
    if rules == "qnn":
        settings = qnn_settings(model, fields, weight_type, activation_type, selection)
    elif rules == "onnxruntime":
        settings = get_qdq_config(
            model,
            None,
            activation_type=activation_type,
            weight_type=weight_type,
            activation_symmetric=bool(fields.activation_symmetric),
            weight_symmetric=fields.weight_symmetric,
            per_channel=bool(fields.per_channel),
            tensor_quant_overrides=(whole_tensors(model.graph, weight_type) if fields.per_channel else {})
            | node_overrides(
                model.graph, fields, activation_type, fields.weight_symmetric, per_channel=bool(fields.per_channel)
            ),
            op_types_to_quantize=selection.sorted_op_types,
            nodes_to_exclude=list(selection.nodes),
        )
    else:
        raise StageError(f"Unknown quantization rules {rules!r}.", advice="Known are: qnn, onnxruntime.")
    settings.reduce_range = bool(fields.reduce_range)
    if fields.per_channel and standard_opset(model) < FIRST_OPSET:
        settings.extra_options["UseQDQContribOps"] = True
    constants = constant_tensors(model.graph)
    if any(node.op_type == "Clip" and not constants.keys() >= {*node.input[1:]} - {""} for node in model.graph.node):
        # With computed bounds, the range in calibration does not replace the Clip.
        settings.extra_options["QDQKeepRemovableActivations"] = True
    return settings


def _type(fields: QuantizeFields, field: str) -> QuantType:
    name, known = getattr(fields, field), WEIGHT_TYPES if field == "weight_type" else INTEGER_TYPES
    if name not in known:
        raise StageError(f"quant.{field} {name!r} is not an integer type.", advice=f"Use: {', '.join(known)}.")
    return known[name]


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


def _check(coverage: Coverage, fields: QuantizeFields, graph: GraphProto) -> None:
    """Raise StageError unless the result is what was requested: the tools skip what they cannot do."""
    if not coverage.quantized and (inside := sum(1 for _ in compute_nodes_inside(graph))):
        raise StageError(
            f"No node of the model could be quantized: {inside} are inside of If, Loop or Scan, which static"
            " quantization does not reach.",
            advice="Precision dynamic, w4a32 or fp16 takes them too.",
        )
    if not coverage.quantized:
        _refuse_nothing(fields)
    overrides = fields.node_overrides or ()
    others = {override.activation_type for override in overrides if override.activation_type}
    found = set(coverage.activations)
    if not others <= found <= {fields.activation_type, *others}:
        wanted = ", ".join(sorted({str(fields.activation_type), *others}))
        raise StageError(f"Activations came out as {_texts(coverage.activations)} instead of {wanted}.")
    own = {override.weight_type for override in overrides if override.weight_type}
    # If nodes have types of their own, all nodes with weights may.
    missing = (own or {str(fields.weight_type)}) - coverage.weights.keys()
    if coverage.weights and missing and (_has_matrices(graph) or not coverage.weights.keys() <= found):
        raise StageError(
            f"Weights came out as {_texts(coverage.weights)}; none is {', '.join(sorted(map(str, missing)))}."
        )


def _has_matrices(graph: GraphProto) -> bool:
    """Return whether the tools find weights in it: constants of elementwise operators get the activations' type."""
    constants = {tensor.name for tensor in graph.initializer}
    return any(node.op_type in CHANNEL_AXES and constants & set(node.input[1:2]) for node in graph.node)


def _refuse_nothing(fields: QuantizeFields) -> NoReturn:
    raise nothing_left("No node of the model could be quantized.", fields)


def _texts(counts: Mapping[str, int]) -> str:
    return ", ".join(counts) or "nothing"
