"""Count which nodes of a quantized model compute in other types than before, and in which ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from onnx import GraphProto, NodeProto, TensorProto

from winml_dag.canonical import JsonObject
from winml_dag.onnxmodel.facts import QDQ, dtype_name
from winml_dag.onnxmodel.protos import graphs_inside, graphs_of
from winml_dag.stages.float_model import NOT_COMPUTING, compute_nodes, compute_nodes_inside, float_values
from winml_dag.stages.quantize.selection import identity

# Why a node stays in float in static quantization; the braces hold the operator that runs its graph.
INSIDE = "inside of {}, which static quantization does not reach"

# Operators on integer weights that onnxruntime's tools insert.
_INTEGER_OPS = frozenset(
    {
        "MatMulInteger",
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "QAttention",
        "QEmbedLayerNormalization",
        "DequantizeLinear",
        "MatMulNBits",
        "GatherBlockQuantized",
    }
)
_BYTES = (TensorProto.UINT8, TensorProto.INT8)

# Number of data inputs for operators whose other inputs are parameters (bounds, scales, statistics) that stay in float.
DATA_INPUTS = {"Clip": 1, "Pad": 1, "Resize": 1, "Upsample": 1, "BatchNormalization": 3}
# Computed biases stay in float, too.
DATA_INPUTS |= {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


# Appended to a reason of the config, which changes little here: the node's inputs and outputs are rounded anyway.
_BETWEEN = ", but between Q and DQ of its neighbours: exclude those too"


@dataclass(frozen=True)
class Coverage:
    """Quantized compute nodes, those left in float by operator and reason, Q/DQ nodes, and tensors by type.

    Biases, which are always int32, are in neither ``weights`` nor ``activations``.
    """

    quantized: int
    skipped: Mapping[str, Mapping[str, int]]
    quantize_linear: int = 0
    dequantize_linear: int = 0
    weights: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return {
            "nodes_quantized": self.quantized,
            "nodes_skipped": sum(sum(reasons.values()) for reasons in self.skipped.values()),
            "nodes_skipped_by_type": {op_type: sum(reasons.values()) for op_type, reasons in self.skipped.items()},
            "nodes_skipped_reasons": {op_type: dict(reasons) for op_type, reasons in self.skipped.items()},
            "quantize_linear": self.quantize_linear,
            "dequantize_linear": self.dequantize_linear,
            "weights_by_type": dict(self.weights),
            "activations_by_type": dict(self.activations),
        }


def count_qdq(before: GraphProto, after: GraphProto, reasons: Mapping[str, str]) -> Coverage:
    """Return the coverage of a QDQ model. A node is quantized if all its float data goes through Q and DQ.

    A single constant number is not data: the rules leave some of them in float. *reasons* are those of the config, by
    identity of the node. Such a node never counts as quantized, even if its neighbours surround it with Q and DQ.
    """
    numbers = {tensor.name for tensor in before.initializer if prod(tensor.dims) == 1}
    floats = float_values(before) - numbers
    dequantized = {node.output[0] for node in after.node if node.op_type == "DequantizeLinear"}
    to_quantize = {node.input[0] for node in after.node if node.op_type == "QuantizeLinear"}
    quantized = 0
    skipped: list[tuple[str, str]] = []
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
            skipped.append((node.op_type, f"{reason}{_BETWEEN if between else ''}"))
        elif between:
            quantized += 1
        else:
            untouched = not reads & dequantized and not makes & to_quantize
            skipped.append(
                (node.op_type, "no rule for this operator" if untouched else "some of its data has no integers")
            )
    weights, activations = _types(after)
    for runs, node in compute_nodes_inside(before):
        skipped.append((node.op_type, reasons.get(identity(node), INSIDE.format(runs))))
    counts = Counter(node.op_type for node in after.node)
    return Coverage(quantized, _by_type(skipped), counts[QDQ[0]], counts[QDQ[1]], weights, activations)


def count_replaced(before: GraphProto, after: GraphProto, why: Callable[[NodeProto], str]) -> Coverage:
    """Return the coverage of a model in which operators on integer weights replaced others; outputs kept their names.

    *why* returns the reason why a node was not replaced.
    """
    known = {name for node in _all_nodes(before) for name in node.output}
    makers = {name: node for node in _all_nodes(after) for name in node.output}
    quantized = 0
    skipped: list[tuple[str, str]] = []
    for node in compute_nodes(before):
        if _made_of_integers(makers.get(node.output[0]), node, makers, known):
            quantized += 1
        else:
            skipped.append((node.op_type, why(node)))
    counts = Counter(node.op_type for node in _all_nodes(after))
    return Coverage(quantized, _by_type(skipped), counts[QDQ[0]], counts[QDQ[1]], _replaced_weights(after))


def count_half(before: GraphProto, reasons: Mapping[str, str]) -> Coverage:
    """Return the coverage of a float16 model in which nodes that have *reasons*, by identity, stay in float32."""
    nodes = list(compute_nodes(before))
    skipped = [(node.op_type, reasons[identity(node)]) for node in nodes if identity(node) in reasons]
    return Coverage(len(nodes) - len(skipped), _by_type(skipped))


def _by_type(skipped: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Count the (operator, reason) pairs: how often each reason applies, by operator."""
    counts = Counter(skipped)
    found: dict[str, dict[str, int]] = {}
    for op_type, reason in sorted(counts):
        found.setdefault(op_type, {})[reason] = counts[op_type, reason]
    return found


def _made_of_integers(
    maker: NodeProto | None, original: NodeProto, makers: Mapping[str, NodeProto], known: set[str]
) -> bool:
    """Return whether an integer operator is among the nodes that replaced *original*; *maker* is the last of them."""
    pending = [maker]
    while pending:
        node = pending.pop()
        if node is None or node == original:
            continue
        if node.op_type in _INTEGER_OPS:
            return True
        pending.extend(makers.get(name) for name in node.input if name not in known)
    return False


def _types(graph: GraphProto) -> tuple[dict[str, int], dict[str, int]]:
    constants = {tensor.name: tensor.data_type for tensor in graph.initializer}
    weights: Counter[str] = Counter()
    activations: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            if constants[node.input[0]] != TensorProto.INT32:
                weights[dtype_name(constants[node.input[0]])] += 1
        elif node.op_type == "QuantizeLinear":
            activations[dtype_name(constants[node.input[2]])] += 1
    return _sorted(weights), _sorted(activations)


def _replaced_weights(graph: GraphProto) -> dict[str, int]:
    constants = {tensor.name: tensor for each in graphs_of(graph) for tensor in each.initializer}
    weights: Counter[str] = Counter()
    for node in _all_nodes(graph):
        if node.op_type == "MatMulNBits":
            weights[f"uint{next(attribute.i for attribute in node.attribute if attribute.name == 'bits')}"] += 1
        elif node.op_type in _INTEGER_OPS:
            # After its two weights, LSTM has zero points, one for each channel.
            inputs = node.input[:3] if node.op_type == "DynamicQuantizeLSTM" else node.input
            found = [constants[name] for name in inputs if name in constants and len(constants[name].dims) > 1]
            weights.update(dtype_name(tensor.data_type) for tensor in found if tensor.data_type in _BYTES)
    return _sorted(weights)


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield all nodes, including those of subgraphs."""
    return (node for each in graphs_of(graph) for node in each.node)


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))
