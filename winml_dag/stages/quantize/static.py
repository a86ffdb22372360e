"""static: insert Q and DQ nodes everywhere, with scales from the ranges that calibrate measured.

onnxruntime's QDQQuantizer is used without its ``quantize_static``, which raises the opset of a model to 21 for 16-bit
types by rewriting nodes, for which there are no ranges. Below opset 21 such Q and DQ nodes are in ``com.microsoft``;
below opset 13, so are all in a model with a scale for each channel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnxruntime.quantization import QuantType, StaticQuantConfig, get_qdq_config
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.quant_utils import add_infer_metadata

from winml_dag.canonical import JsonObject
from winml_dag.ep.registry import QNN
from winml_dag.errors import StageError
from winml_dag.onnxmodel.graph import CHANNEL_AXES, standard_opset
from winml_dag.onnxmodel.protos import constant_tensors, graphs_of, without_weights
from winml_dag.recipe.precision import SIXTEEN_BITS, type_bits
from winml_dag.stages.float_model import compute_nodes, compute_nodes_inside, float_tensors
from winml_dag.stages.normalize import FIRST_OPSET
from winml_dag.stages.quantize import NodeTypes, QuantizeFields, QuantizeTarget
from winml_dag.stages.quantize.channels import ChannelQuantizer
from winml_dag.stages.quantize.coverage import Quantized, outcomes_of_qdq, qdq_types
from winml_dag.stages.quantize.mixed import (
    INTEGER_TYPES,
    SIGNED,
    WEIGHT_TYPES,
    node_overrides,
    own_constants,
    use_of,
    weights_of,
    whole_tensors,
)
from winml_dag.stages.quantize.outliers import (
    divide_in_place_of_reciprocals,
    keep_softmax_in_float,
    tame_outliers,
)
from winml_dag.stages.quantize.selection import by_default, hands_on, identity, nothing_left, override_types, select
from winml_dag.stages.ranges import Ranges

_Bounds: TypeAlias = Mapping[str, tuple[float, float]]

_BYTES = (QuantType.QUInt8, QuantType.QInt8)
_EIGHT_BITS = {wide: narrow for narrow, wide in SIXTEEN_BITS.items()}
_SIGNED_NARROW = (QuantType.QInt4, QuantType.QInt8)
# onnxruntime's rules for QNN make every range at least 1e-4 wide, which costs weights of 1e-6 22 dB. Without a minimum
# range, constants of zeros get the scale 1, and QNN fails on the model or is wrong.
_LEAST_RANGE = 1e-8


def _qnn_settings(
    model: ModelProto,
    fields: QuantizeFields,
    types: Mapping[str, NodeTypes],
    weight_type: QuantType,
    activation_type: QuantType,
    excluded: list[str],
) -> StaticQuantConfig:
    """Return onnxruntime's rules for QNN, with changes that measured better.

    Weights of MatMul are per channel too: all-MiniLM-L6-v2 has feed-forward weights of up to 175 standard deviations.
    In w8a16, the worst cosine of its embeddings to those of the float model is 0.945 with one scale for the whole
    tensor, and 0.993 with one for each channel. QNN takes 16-bit weights only if they are symmetric.
    """
    graph, per_channel = model.graph, bool(fields.per_channel)
    weight_symmetric = True if weight_type not in _BYTES else fields.weight_symmetric
    overrides = whole_tensors(graph, weight_type) if per_channel else {}
    constants = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "LayerNormalization" and weight_type in _SIGNED_NARROW and node.input[1] in constants:
            # With signed 4-bit or 8-bit scales, QNN leaves these nodes to the CPU.
            overrides[node.input[1]] = [{"quant_type": QuantType.QUInt8, "symmetric": False}]
        elif node.op_type == "PRelu" and node.input[1] in constants:
            # With slopes in 16 bits, QNN runs out of memory unless a Conv is before the node.
            overrides[node.input[1]] = [{"quant_type": weight_type, "symmetric": weight_type in SIGNED}]
    if per_channel:
        overrides |= {
            name: [{"axis": 1, "quant_type": weight_type, "symmetric": True}] for name in _matmul_weights(graph)
        }
    _refuse_pairs(graph, fields, types)
    # Any other form of weights that differ in type from the default stays on the CPU.
    overrides |= node_overrides(graph, types, activation_type, True, per_channel=per_channel)
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
        nodes_to_exclude=excluded,
    )
    settings.extra_options["MinimumRealRange"] = _LEAST_RANGE
    # Such operators become integers only behind others that are, of which a model of nothing else has none.
    only_passes_on = hands_on(node.op_type for node in compute_nodes(graph) if node.name not in excluded)
    settings.extra_options["ForceQuantizeNoInputCheck"] = only_passes_on
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


def _refuse_pairs(graph: GraphProto, fields: QuantizeFields, types: Mapping[str, NodeTypes]) -> None:
    """Raise StageError for a node whose types in the config would leave it to the CPU."""
    constants = {tensor.name for tensor in graph.initializer}
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


# Trees, and encoders of categories: a rounded category is another one.
_CLASSICAL = "ai.onnx.ml"
# The first opset of the standard with Q and DQ.
_INTEGERS_FROM = 10


def insert_qdq(model: ModelProto, ranges: Ranges, fields: QuantizeFields, target: QuantizeTarget) -> Quantized:
    """Return the QDQ form of *model*, whose tensors must have types and nodes names; *model* is modified.

    Raises:
        StageError: types cannot be combined, a tensor has no range, or the result differs from what was requested.
    """
    graph, opset = model.graph, standard_opset(model)
    if 0 < opset < _INTEGERS_FROM:
        raise StageError(
            f"The model is written in opset {opset}, and ONNX has integer operators from opset {_INTEGERS_FROM} on.",
            advice="Export it with opset 17 or later, or convert it with onnx.version_converter.",
        )
    if missing := sorted(float_tensors(graph) - ranges.bounds.keys()):
        raise StageError(
            f"The activation ranges are missing {len(missing)} tensors of the model, such as {missing[0]!r}.",
            advice="Calibrate this model.",
        )
    fields = by_default(graph, fields, target.op_types)
    reasons = select(graph, fields)
    for node in (node for each in graphs_of(graph) for node in each.node):
        if not {*node.input, *node.output}.isdisjoint(ranges.infinite):
            reasons.setdefault(identity(node), "infinite on the calibration data")
        elif node.domain == _CLASSICAL:
            reasons.setdefault(identity(node), f"operators of {_CLASSICAL} have no integer form")
    if all(identity(node) in reasons for node in compute_nodes(graph)):
        raise nothing_left("No node of the model could be quantized.", fields)

    def taken(node: NodeProto) -> bool:
        return identity(node) not in reasons

    _split_constants(graph, taken, override_types(graph, fields.node_overrides or ()))
    if target.rules == "qnn":
        divide_in_place_of_reciprocals(graph, taken)
    else:
        for node in keep_softmax_in_float(graph, opset):
            reasons.setdefault(identity(node), "its integer form is wrong for a single value")
    tamed = tame_outliers(graph, ranges, fields, taken, mixes_widths=bool(target.mixes_widths))
    bounds = _fine_biases(graph, _whole_softmax(graph, tamed.ranges.bounds))
    types = tamed.types if target.rules != "qnn" else _narrow_for_qnn(graph, fields) | tamed.types
    _split_constants(graph, taken, types)
    # Not the model in memory: above 2 GiB, reading its size is an error.
    before = without_weights(model)
    settings = _settings(before, fields, types, reasons, target.rules)
    # Without this mark the quantizer infers shapes again, through files in the system's temporary folder.
    add_infer_metadata(model)
    started = time.perf_counter()
    quantizer = ChannelQuantizer(
        model,
        settings.per_channel,
        settings.reduce_range,
        settings.weight_type,
        settings.activation_type,
        # The method matters only to onnxruntime's own files; bounds are bounds.
        TensorsData(
            CalibrationMethod.MinMax,
            {name: tuple(np.array([end], np.float32) for end in pair) for name, pair in bounds.items()},
        ),
        settings.nodes_to_quantize,
        settings.nodes_to_exclude,
        # Sorted: a set has no stable order.
        sorted(settings.op_types_to_quantize),
        settings.extra_options,
    )
    try:
        quantizer.quantize_model()
    except AssertionError as error:
        raise _no_numbers(graph) or error from error
    quantizer.model.topological_sort()
    seconds = time.perf_counter() - started
    made = quantizer.model.model
    outcomes = list(outcomes_of_qdq(before.graph, made.graph, reasons))
    weights, activations = qdq_types(made.graph)
    more: JsonObject = {"qdq_insertion_time_seconds": seconds, **tamed.metrics}
    result = Quantized(made, outcomes, str(fields.weight_type), str(fields.activation_type), weights, activations, more)
    _check(result, fields, types, before.graph)
    return result


def _narrow_for_qnn(graph: GraphProto, fields: QuantizeFields) -> dict[str, NodeTypes]:
    """Return 8-bit activations for each LRN of *graph*, by name, if the others have 16 bits.

    QNN has no LRN of 16 bits, and fails on the whole model (SDK 2.51).
    """
    narrow = _EIGHT_BITS.get(str(fields.activation_type))
    names = [node.name for node in graph.node if node.op_type == "LRN" and narrow is not None]
    return {name: NodeTypes(name, activation_type=narrow) for name in names}


def _no_numbers(graph: GraphProto) -> StageError | None:
    """Return the error for a constant with NaN, for which the quantizer reports only a missing scale."""
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.isnan(numpy_helper.to_array(tensor)).any():
            return StageError(
                f"The constant {tensor.name!r} has NaN values, which integers cannot represent.",
                advice="Leave the nodes that read it in float: quant.nodes_to_exclude.",
            )
    return None


def _whole_softmax(graph: GraphProto, bounds: _Bounds) -> _Bounds:
    """Return *bounds* with 0 to 1 for outputs of Softmax, even if only their readers are quantized.

    onnxruntime's quantizer does that for a Softmax that it quantizes itself. On the CPU, onnxruntime fuses any Softmax
    between DQ and Q to one integer operator, which writes 0 for values above the range instead of its upper end: a
    classifier that was more certain than in calibration (0.97, with at most 0.86 before) output 0.0 for its first
    class.
    """
    made = {node.output[0] for node in graph.node if node.op_type == "Softmax"}
    return {**bounds, **dict.fromkeys(made, (0.0, 1.0))}


def _fine_biases(graph: GraphProto, bounds: _Bounds) -> _Bounds:
    """Return *bounds* with 0 to 1 for tensors that were 0 on all samples and whose product gets a bias.

    onnxruntime's quantizer gives such a tensor the scale 1, as for a range of 0 to 255 or 65535, and the bias the
    tensor's scale times the weight's, so the bias is rounded to a few steps. Other tensors are not changed: QNN loses
    an operand of a Sub whose scale is 1000 times that of the result.
    """
    summed = {node.input[0] for node in graph.node if node.op_type in CHANNEL_AXES and len(node.input) > 2}
    return {**bounds, **{name: (0.0, 1.0) for name in summed if bounds.get(name) == (0.0, 0.0)}}


def _split_constants(graph: GraphProto, taken: Callable[[NodeProto], bool], types: Mapping[str, NodeTypes]) -> None:
    """Split constants of *graph*, whose nodes have names, if their readers need different types or scales."""

    def use(node: NodeProto, position: int) -> Hashable:
        if not taken(node):
            return None
        return (node.name, position) if node.name in types else use_of(node, position)

    own_constants(graph, use)


def _settings(
    model: ModelProto,
    fields: QuantizeFields,
    types: Mapping[str, NodeTypes],
    reasons: Mapping[str, str],
    rules: str | None,
) -> StaticQuantConfig:
    """Return the settings of onnxruntime's quantizer: the config's fields, and what the *rules* add for their provider.

    Raises:
        StageError: rules or types are unknown, or types cannot be combined.
    """
    weight_type, activation_type = _type(fields, "weight_type"), _type(fields, "activation_type")
    if activation_type is QuantType.QInt8 and weight_type is QuantType.QUInt8:
        raise StageError(
            "onnxruntime has no kernels for activation_type int8 with weight_type uint8.",
            advice="Use weight_type int8, or activation_type uint8.",
        )
    graph, per_channel = model.graph, bool(fields.per_channel)
    excluded = [node.name for node in graph.node if identity(node) in reasons]
    if rules == "qnn":
        settings = _qnn_settings(model, fields, types, weight_type, activation_type, excluded)
    elif rules == "onnxruntime":
        overrides = whole_tensors(graph, weight_type) if per_channel else {}
        overrides |= node_overrides(graph, types, activation_type, fields.weight_symmetric, per_channel=per_channel)
        settings = get_qdq_config(
            model,
            None,
            activation_type=activation_type,
            weight_type=weight_type,
            activation_symmetric=bool(fields.activation_symmetric),
            weight_symmetric=fields.weight_symmetric,
            per_channel=per_channel,
            tensor_quant_overrides=overrides,
            nodes_to_exclude=excluded,
        )
    else:
        raise StageError(f"Unknown quantization rules {rules!r}.", advice="Known are: qnn, onnxruntime.")
    settings.reduce_range = bool(fields.reduce_range)
    if per_channel and standard_opset(model) < FIRST_OPSET:
        settings.extra_options["UseQDQContribOps"] = True
    constants = constant_tensors(graph)
    if any(node.op_type == "Clip" and not constants.keys() >= {*node.input[1:]} - {""} for node in graph.node):
        # With computed bounds, the range in calibration does not replace the Clip.
        settings.extra_options["QDQKeepRemovableActivations"] = True
    return settings


def _type(fields: QuantizeFields, field: str) -> QuantType:
    name, known = getattr(fields, field), WEIGHT_TYPES if field == "weight_type" else INTEGER_TYPES
    if name not in known:
        raise StageError(f"quant.{field} {name!r} is not an integer type.", advice=f"Use: {', '.join(known)}.")
    return known[name]


def _check(result: Quantized, fields: QuantizeFields, types: Mapping[str, NodeTypes], graph: GraphProto) -> None:
    """Raise StageError unless the result is what was requested: the tools skip what they cannot do."""
    if not result.is_changed and (inside := sum(1 for _ in compute_nodes_inside(graph))):
        raise StageError(
            f"No node of the model could be quantized: {inside} are inside of If, Loop or Scan, which static"
            " quantization does not reach.",
            advice="Precision dynamic, w4a32 or fp16 takes them too.",
        )
    if not result.is_changed:
        raise nothing_left("No node of the model could be quantized.", fields)
    others = {each.activation_type for each in types.values() if each.activation_type}
    found = set(result.activations)
    if not others <= found <= {fields.activation_type, *others}:
        wanted = ", ".join(sorted({str(fields.activation_type), *others}))
        raise StageError(f"Activations came out as {_texts(result.activations)} instead of {wanted}.")
    own = {each.weight_type for each in types.values() if each.weight_type}
    # If nodes have types of their own, all nodes with weights may.
    missing = (own or {str(fields.weight_type)}) - result.weights.keys()
    if result.weights and missing and (_has_matrices(graph) or not result.weights.keys() <= found):
        raise StageError(
            f"Weights came out as {_texts(result.weights)}; none is {', '.join(sorted(map(str, missing)))}."
        )


def _has_matrices(graph: GraphProto) -> bool:
    """Return whether the tools find weights in it: constants of elementwise operators get the activations' type."""
    constants = {tensor.name for tensor in graph.initializer}
    return any(node.op_type in CHANNEL_AXES and constants & set(node.input[1:2]) for node in graph.node)


def _texts(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(counts)) or "nothing"
