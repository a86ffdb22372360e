"""A quantized model, and which of its nodes compute in other types than before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from winml_dag.canonical import JsonObject
from winml_dag.onnxmodel.graph import INTEGER_OPERATORS, QDQ, dtype_name
from winml_dag.onnxmodel.protos import attributes_of, graphs_inside, graphs_of, nodes_of
from winml_dag.stages.float_model import NOT_COMPUTING, compute_nodes, compute_nodes_inside, float_values
from winml_dag.stages.quantize.selection import identity

# Why a node stays in float in static quantization; the braces hold the operator that runs its graph.
INSIDE = "inside of {}, which static quantization does not reach"

# Operators on integer weights that onnxruntime's tools insert.
_ON_WEIGHTS = INTEGER_OPERATORS - {"QuantizeLinear"}
_BYTES = (TensorProto.UINT8, TensorProto.INT8)

# Number of data inputs for operators whose other inputs are parameters (bounds, scales, statistics) that stay in float.
DATA_INPUTS = {"Clip": 1, "Pad": 1, "Resize": 1, "Upsample": 1, "BatchNormalization": 3}
# Computed biases stay in float, too.
DATA_INPUTS |= {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


# Appended to a reason of the config, which changes little here: the node's inputs and outputs are rounded anyway.
_BETWEEN = ", but between Q and DQ of its neighbours: exclude those too"


# The operator of a compute node, and why it stays in float; None if it is quantized.
Outcome: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Quantized:
    """A quantized model, the outcome of each compute node, and how many tensors have which types.

    Biases, which are always int32, are in neither ``weights`` nor ``activations``. ``more_metrics``: of the mode.
    """

    model: ModelProto
    outcomes: Sequence[Outcome]
    weight_type: str
    activation_type: str
    weights: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, int] = field(default_factory=dict)
    more_metrics: JsonObject = field(default_factory=dict)

    @property
    def is_changed(self) -> bool:
        """Whether any node is quantized."""
        return any(reason is None for _, reason in self.outcomes)

    @property
    def skipped(self) -> dict[str, dict[str, int]]:
        """How many nodes stay in float, by operator and reason."""
        found: dict[str, dict[str, int]] = {}
        for op_type, reason in sorted((op_type, reason) for op_type, reason in self.outcomes if reason is not None):
            by_reason = found.setdefault(op_type, {})
            by_reason[reason] = by_reason.get(reason, 0) + 1
        return found

    def metrics(self) -> JsonObject:
        counts = Counter(node.op_type for node in nodes_of(self.model.graph))
        by_type = {op_type: sum(reasons.values()) for op_type, reasons in self.skipped.items()}
        skipped = sum(by_type.values())
        return {
            "weight_type": self.weight_type,
            "activation_type": self.activation_type,
            "nodes_quantized": len(self.outcomes) - skipped,
            "nodes_skipped": skipped,
            "nodes_skipped_by_type": by_type,
            "nodes_skipped_reasons": self.skipped,
            "quantize_linear": counts[QDQ[0]],
            "dequantize_linear": counts[QDQ[1]],
            "weights_by_type": dict(sorted(self.weights.items())),
            "activations_by_type": dict(sorted(self.activations.items())),
            **self.more_metrics,
        }


def outcomes_of_qdq(before: GraphProto, after: GraphProto, reasons: Mapping[str, str]) -> Iterator[Outcome]:
    """Yield the outcomes of a QDQ model. A node is quantized if all its float data goes through Q and DQ.

    A single constant number is not data: the rules leave some of them in float. *reasons* are those of the config, by
    identity of the node. Such a node never counts as quantized, even if its neighbours surround it with Q and DQ.
    """
    numbers = {tensor.name for tensor in before.initializer if prod(tensor.dims) == 1}
    floats = float_values(before) - numbers
    dequantized = {node.output[0] for node in after.node if node.op_type == "DequantizeLinear"}
    to_quantize = {node.input[0] for node in after.node if node.op_type == "QuantizeLinear"}
    for node in after.node:
        if node.op_type in QDQ or node.op_type in NOT_COMPUTING or any(graphs_inside([node])):
            continue
        data = node.input[: DATA_INPUTS.get(node.op_type)]
        reads = {name for name in data if name in dequantized or name in floats}
        makes = {name for name in node.output if name in to_quantize or name in floats}
        if not reads and not makes:
            continue
        between = reads <= dequantized and makes <= to_quantize
        reason = reasons.get(identity(node))
        if reason is not None:
            yield node.op_type, f"{reason}{_BETWEEN if between else ''}"
        elif between:
            yield node.op_type, None
        else:
            untouched = not reads & dequantized and not makes & to_quantize
            yield node.op_type, "no rule for this operator" if untouched else "some of its data has no integers"
    for runs, node in compute_nodes_inside(before):
        yield node.op_type, reasons.get(identity(node), INSIDE.format(runs))


def outcomes_of_replaced(
    before: GraphProto, after: GraphProto, reasons: Mapping[str, str], ruled: Collection[str]
) -> Iterator[Outcome]:
    """Yield the outcomes of a model in which operators on integer weights replaced others; outputs kept their names.

    *reasons* are those of the config, by identity of the node; *ruled*: the operators that there are rules for.
    """
    known = {name for node in nodes_of(before) for name in node.output}
    makers = {name: node for node in nodes_of(after) for name in node.output}
    ranks = {tensor.name: len(tensor.dims) for each in graphs_of(before) for tensor in each.initializer}
    for node in compute_nodes(before):
        constants = [ranks[name] for name in node.input if name in ranks]
        if _made_of_integers(makers.get(node.output[0]), node, makers, known):
            yield node.op_type, None
        elif (chosen := reasons.get(identity(node))) is not None:
            yield node.op_type, chosen
        elif node.op_type not in ruled:
            yield node.op_type, "no rule for this operator"
        elif not constants:
            yield node.op_type, "its weight is not constant"
        elif 2 not in constants:
            yield node.op_type, "its weight is not a matrix"
        else:
            yield node.op_type, "onnxruntime left it in float"


def _made_of_integers(
    maker: NodeProto | None, original: NodeProto, makers: Mapping[str, NodeProto], known: set[str]
) -> bool:
    """Return whether an integer operator is among the nodes that replaced *original*; *maker* is the last of them."""
    pending = [maker]
    while pending:
        node = pending.pop()
        if node is None or node == original:
            continue
        if node.op_type in _ON_WEIGHTS:
            return True
        pending.extend(makers.get(name) for name in node.input if name not in known)
    return False


def qdq_types(graph: GraphProto) -> tuple[Counter[str], Counter[str]]:
    """Count the types of weights and of activations in a QDQ model."""
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    weights: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            if constants[node.input[0]] != TensorProto.INT32:
                weights[dtype_name(constants[node.input[0]])] += 1
        elif node.op_type == "QuantizeLinear":
            activations[dtype_name(constants[node.input[2]])] += 1
    return weights, activations


def replaced_types(graph: GraphProto) -> Counter[str]:
    """Count the types of weights that integer operators read."""
    constants = {tensor.name: tensor for each in graphs_of(graph) for tensor in each.initializer}
    weights: Counter[str] = Counter()
    for node in nodes_of(graph):
        if node.op_type == "MatMulNBits":
            weights[f"uint{attributes_of(node)['bits']}"] += 1
        elif node.op_type in _ON_WEIGHTS:
            # After its two weights, LSTM has zero points, one for each channel.
            inputs = node.input[:3] if node.op_type == "DynamicQuantizeLSTM" else node.input
            found = [constants[name] for name in inputs if name in constants and len(constants[name].dims) > 1]
            weights.update(dtype_name(tensor.data_type) for tensor in found if tensor.data_type in _BYTES)
    return weights
