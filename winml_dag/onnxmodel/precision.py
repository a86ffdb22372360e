"""The actual precision of a model, determined from the types of its numbers and not from the request.

A recipe has w8a8, but 36 activations stay at 16 bits; a file is called ``model_int8.onnx``, but only its MatMuls are
int8. The types at the Q/DQ nodes and in the integer operators count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from winml_dag.onnxmodel.graph import (
    BLOCK_OPERATORS,
    CHANNEL_AXES,
    DYNAMIC_WEIGHTS,
    INTEGER_OPERATORS,
    OPERATOR_WEIGHTS,
    Model,
    Node,
    Tensor,
    all_nodes,
    bit_width,
    constants_of,
    dtype_name,
    integer_of,
)

_QUANTIZE_DEFAULT = 2  # QuantizeLinear's default is uint8
_BIAS = "int32"

_MATRIX_OPS = frozenset({*CHANNEL_AXES, "FusedMatMul", "FusedGemm", "FusedConv"})
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_ACCURACY_INT8 = 4
_WORTH_TELLING = 0.01


@dataclass(frozen=True)
class FoundPrecision:
    """The types of a model's numbers.

    Attributes:
        name: as in a recipe: ``w8a16``, ``w4a32``, ``dynamic``, ``fp16``; empty for a compiled model, whose numbers are
            in its binary, and for one without any weights.
        scheme: qdq, operators (QLinearConv and similar), dynamic, weights (only these), float or compiled.
        weights: elements of the weights of MatMul, Gemm and Conv, by integer type.
        others: the same of other constants, such as embeddings and operands of Add; without int32 biases.
        activations: quantized activations by integer type; of a compiled model, those at its edges.
        floats: elements of constants by floating-point type, without scales.
        matrix_nodes: MatMul, Gemm, Conv and ConvTranspose nodes that compute with integers, and all of them.
        accuracy_level: how MatMulNBits computes, if set: 4 is 8-bit activations inside the operator.
    """

    name: str
    scheme: str
    weights: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, int] = field(default_factory=dict)
    floats: Mapping[str, int] = field(default_factory=dict)
    matrix_nodes: tuple[int, int] = (0, 0)
    accuracy_level: int = 0

    @property
    def text(self) -> str:
        """A human-readable summary: ``w8a8, 36 of 205 activations are uint16``."""
        return ", ".join(filter(None, (self._title(), *self._shares())))

    def _title(self) -> str:
        if self.scheme == "compiled":
            return "inside the compiled binary"
        if self.scheme == "dynamic":
            return f"dynamic: {'/'.join(self.weights)} weights, activations quantized while it runs"
        return self.name + {"operators": " in integer operators (QOperator)", "weights": " (weights only)"}.get(
            self.scheme, ""
        )

    def _shares(self) -> Iterable[str]:
        if self.scheme == "compiled":
            types = " and ".join(self.activations)
            yield f"quantized to {types} at its edges" if types else ""
            return
        yield _share(self.activations, "activations")
        yield _share(self.weights, "weights' elements")
        yield from self._other_types()
        if self.scheme == "float":
            yield _share(self.floats, "weights' elements")
        if self.accuracy_level == _ACCURACY_INT8:
            yield "activations rounded to 8 bits inside MatMulNBits (accuracy level 4)"
        quantized, all_of_them = self.matrix_nodes
        if self.scheme != "float" and quantized < all_of_them:
            yield f"{quantized} of {all_of_them} MatMul, Gemm and Conv nodes"

    def _other_types(self) -> Iterable[str]:
        """Yield large constants of another width than the weights: an embedding table may be half of a model."""
        total = sum(self.weights.values()) + sum(self.others.values())
        widths = {bit_width(name) for name in self.weights}
        for name, count in self.others.items():
            if widths and bit_width(name) not in widths and count > _WORTH_TELLING * total:
                yield f"{count / total:.0%} of all elements are {name}, outside of MatMul, Gemm and Conv"


def _share(counts: Mapping[str, int], noun: str) -> str:
    """Return what is not of the most frequent type: ``36 of 205 activations are uint16``."""
    total = sum(counts.values())
    others = list(counts.items())[1:]
    return ", ".join(f"{count} of {total} {noun} are {name}" for name, count in others)


def precision_of(model: Model) -> FoundPrecision:
    """Determine the precision from all numbers of *model*."""
    nodes = all_nodes(model)
    constants = constants_of(model, nodes)
    op_types = {node.op_type for node in nodes}
    counts = _Counts(model, nodes, constants)
    weights, others, activations = map(_most_first, (counts.weights, counts.others, counts.activations))
    floats = _float_types(model, nodes, constants)
    scheme = _scheme(op_types, activations)
    return FoundPrecision(
        _name(scheme, next(iter(weights or others), ""), next(iter(activations), ""), next(iter(floats), "")),
        scheme,
        weights,
        others,
        activations,
        floats,
        _matrix_nodes(nodes),
        max((integer_of(node, "accuracy_level") for node in nodes if node.op_type in BLOCK_OPERATORS), default=0),
    )


def _scheme(op_types: set[str], activations: Mapping[str, int]) -> str:
    if "EPContext" in op_types:
        return "compiled"
    if any(name.startswith(("QLinear", "QAttention", "QGemm")) for name in op_types):
        return "operators"
    if "DynamicQuantizeLinear" in op_types or op_types & DYNAMIC_WEIGHTS.keys():
        return "dynamic"
    if activations:
        return "qdq"
    return "weights" if op_types & {*BLOCK_OPERATORS, "DequantizeLinear"} else "float"


def _name(scheme: str, weight: str, activation: str, real: str) -> str:
    if scheme in ("compiled", "dynamic"):
        return "dynamic" if scheme == "dynamic" else ""
    if scheme == "float":
        return _SHORT.get(real, "")
    # Activations without an integer type are in the remaining float type.
    width = bit_width(activation or real or "float32")
    return f"w{bit_width(weight) if weight else bit_width(real or 'float32')}a{width}"


class _Counts:
    """Integers of a model by type: elements of weights and other constants, and the number of activations."""

    def __init__(self, model: Model, nodes: Sequence[Node], constants: Mapping[str, Tensor]) -> None:
        self.weights: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.activations: Counter[str] = Counter()
        self._constants = constants
        self._multiplied = {name for node in nodes if node.op_type in _MATRIX_OPS for name in node.inputs[:2]}
        dequantizing = [node for node in nodes if node.op_type == "DequantizeLinear"]
        # For a constant that is quantized at run time, the dequantized output is multiplied.
        self._multiplied |= {_input(node, 0) for node in dequantizing if _output(node) in self._multiplied}
        for node in nodes:
            if node.op_type == "QuantizeLinear":
                self._add_quantize(node)
            elif node.op_type in BLOCK_OPERATORS:
                self._add_blocks(node)
            else:
                for index in {**DYNAMIC_WEIGHTS, **OPERATOR_WEIGHTS}.get(node.op_type, ()):
                    if (weight := constants.get(_input(node, index))) is not None:
                        self.weights[dtype_name(weight.data_type)] += prod(weight.dims)
        inputs = {value.name: dtype_name(value.data_type) for value in model.graph.inputs}
        quantized = {name for node in nodes if node.op_type == "QuantizeLinear" for name in node.outputs}
        for first, node in {_input(node, 0): node for node in dequantizing}.items():
            if (source := constants.get(first)) is not None:
                if (name := dtype_name(source.data_type)) != _BIAS:
                    self._add(first, name, source)
            elif first not in quantized:  # its source is outside: a model input, or a compiled partition
                self.activations[inputs.get(first) or _zero_point_type(node, constants)] += 1

    def _add(self, value: str, dtype: str, source: Tensor) -> None:
        (self.weights if value in self._multiplied else self.others)[dtype] += prod(source.dims)

    def _add_quantize(self, node: Node) -> None:
        source, name = self._constants.get(_input(node, 0)), _zero_point_type(node, self._constants)
        if source is None:
            self.activations[name] += 1
        else:
            self._add(_output(node), name, source)

    def _add_blocks(self, node: Node) -> None:
        if node.op_type == "MatMulNBits":
            self.weights[f"uint{integer_of(node, 'bits') or 4}"] += max(
                0, integer_of(node, "K") * integer_of(node, "N")
            )
        elif (source := self._constants.get(_input(node, 0))) is not None:
            stored = bit_width(dtype_name(source.data_type))
            bits = max(0, integer_of(node, "bits")) or stored or 8
            self.others[f"uint{bits}"] += prod(source.dims) * stored // bits


def _zero_point_type(node: Node, constants: Mapping[str, Tensor]) -> str:
    zero_point = constants.get(_input(node, 2))
    return dtype_name(zero_point.data_type if zero_point else integer_of(node, "output_dtype") or _QUANTIZE_DEFAULT)


def _input(node: Node, index: int) -> str:
    return node.inputs[index] if index < len(node.inputs) else ""


def _output(node: Node) -> str:
    return node.outputs[0] if node.outputs else ""


def _float_types(model: Model, nodes: Iterable[Node], constants: Mapping[str, Tensor]) -> Mapping[str, int]:
    """Count elements of constants by floating-point type; without any, the types of inputs and outputs."""
    scales = {name for node in nodes if node.op_type in INTEGER_OPERATORS for name in node.inputs[1:]}
    names = {name for name in constants if name and name not in scales}
    counts: Counter[str] = Counter()
    for tensor in {id(constants[name]): constants[name] for name in names}.values():
        counts[dtype_name(tensor.data_type)] += prod(tensor.dims)
    if not any(counts[name] for name in _FLOATS):
        counts.update(dtype_name(value.data_type) for value in (*model.graph.inputs, *model.graph.outputs))
    return _most_first({name: counts[name] for name in _FLOATS if counts[name]})


def _matrix_nodes(nodes: Sequence[Node]) -> tuple[int, int]:
    dequantized = {_output(node) for node in nodes if node.op_type == "DequantizeLinear"}
    on_integers = sum(node.op_type in {*DYNAMIC_WEIGHTS, *OPERATOR_WEIGHTS, "MatMulNBits"} for node in nodes)
    matrix = [node for node in nodes if node.op_type in _MATRIX_OPS]
    quantized = sum(bool(node.inputs) and dequantized.issuperset(node.inputs[:2]) for node in matrix)
    return on_integers + quantized, on_integers + len(matrix)


def _most_first(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts, key=lambda name: (-counts[name], name))}
