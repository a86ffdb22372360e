"""From a node of a model to its case. Looking a case up and measuring it both use this, so that they mean the same."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from winml_dag.ep.support.case import AttributeValue, Case, Number, Operand, Quantized
from winml_dag.onnxmodel.dataflow import numbers_of
from winml_dag.onnxmodel.facts import CHANNEL_AXES, QDQ, dtype_name
from winml_dag.onnxmodel.graph import Attribute, Graph, Model, Node, Tensor, Value

_FLOATS = frozenset({"float32", "float16", "float64", "bfloat16"})
_MOST_VALUES = 8
# Constants that stay floats when what they belong to is quantized: sizes, bounds and factors.
_STAY_FLOAT = {
    "Clip": (1, 2),
    "Dropout": (1,),
    "OneHot": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}
_WEIGHTS = {
    "Conv": (1,),
    "ConvTranspose": (1,),
    "Gemm": (0, 1),
    "InstanceNormalization": (1,),
    "LayerNormalization": (1,),
    "MatMul": (0, 1),
    "PRelu": (1,),
}
_WITH_BIAS = frozenset({"Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization"})


@dataclass(frozen=True)
class Scope:
    """What a node may refer to: the types and constants of a graph by name, and the conversions around its values.

    Attributes:
        opsets: by domain.
        dequantized: by name of a value, the DequantizeLinear that makes it.
        quantizers: by name of a value, the QuantizeLinear nodes that read it.
        sources: by name of what a conversion gives, the name of what it has the shape of.
    """

    opsets: Mapping[str, int]
    values: Mapping[str, Value]
    constants: Mapping[str, Tensor]
    dequantized: Mapping[str, Node]
    quantizers: Mapping[str, tuple[Node, ...]]
    sources: Mapping[str, str]

    @classmethod
    def of(cls, model: Model, graph: Graph | None = None, values: Iterable[Value] = ()) -> Scope:
        """Of *graph* of *model*, by default the outermost. *values* are types that were inferred."""
        graph = model.graph if graph is None else graph
        fed = {value.name for value in graph.inputs}
        constants = {tensor.name: tensor for tensor in graph.initializers if tensor.name not in fed}
        dequantized: dict[str, Node] = {}
        quantizers: dict[str, tuple[Node, ...]] = {}
        sources: dict[str, str] = {}
        for node in graph.nodes:
            if node.op_type == "Constant" and node.outputs and (tensor := _constant(node)) is not None:
                constants[node.outputs[0]] = tensor
            elif node.op_type == "DequantizeLinear":
                dequantized |= dict.fromkeys(node.outputs[:1], node)
            elif node.op_type == "QuantizeLinear":
                for name in node.inputs[:1]:
                    quantizers[name] = (*quantizers.get(name, ()), node)
            if node.op_type in QDQ and node.inputs and node.outputs:
                sources[node.outputs[0]] = node.inputs[0]
        known = {value.name: value for value in (*values, *graph.values, *graph.inputs, *graph.outputs)}
        return cls(model.opsets, known, constants, dequantized, quantizers, sources)


def case_of(node: Node, scope: Scope) -> Case:
    """The case that *node* is. Conversions around it count as the integer types that it is quantized with."""
    quantized = _quantized(node, scope)
    operands = tuple(_input(name, scope, quantized is not None) for name in _given(node.inputs))
    return Case(
        node.op_type,
        node.domain,
        scope.opsets.get(node.domain, 0),
        operands,
        tuple(None if not name else _value(name, scope) for name in _given(node.outputs)),
        tuple(sorted((attribute.name, _attribute(attribute)) for attribute in node.attributes)),
        quantized,
    )


def as_quantized(case: Case, activations: str, weights: str, *, per_channel: bool = False) -> Case:
    """*case* as it will be when its model is quantized with these integer types; itself, where no floats are in it."""
    floats = [operand for operand in case.inputs if operand is not None and operand.dtype in ("float32", "")]
    if case.quantized is not None or not floats:
        return case
    if not has_weights(case):
        return replace(case, quantized=Quantized(activations, ""))
    return replace(case, quantized=Quantized(activations, weights, per_channel and case.op_type in CHANNEL_AXES))


def has_weights(case: Case) -> bool:
    """Whether *case* has a constant that becomes integers of the type of weights when it is quantized."""
    known = (case.inputs[number] for number in weights_of(case.op_type) if number < len(case.inputs))
    return any(operand is not None and operand.constant for operand in known)


def weights_of(op_type: str) -> tuple[int, ...]:
    """The inputs of an operator that are weights where they are constant; other constants are like activations."""
    return _WEIGHTS.get(op_type, ())


def bias_of(op_type: str) -> int | None:
    """The input that becomes int32, whatever integers the others become."""
    return 2 if op_type in _WITH_BIAS else None


def takes_channels(op_type: str) -> bool:
    """Whether its weights have a scale for each channel, where a model is quantized so."""
    return op_type in CHANNEL_AXES


def stays_float(op_type: str, number: int) -> bool:
    """Whether input *number* of an operator is left as it is when that is quantized."""
    return number in _STAY_FLOAT.get(op_type, ())


def _given(names: tuple[str, ...]) -> tuple[str, ...]:
    """Without the empty names at the end: to write none and to leave it out is the same."""
    last = len(names)
    while last and not names[last - 1]:
        last -= 1
    return names[:last]


def _input(name: str, scope: Scope, quantized: bool) -> Operand | None:
    if not name:
        return None
    if quantized and (conversion := scope.dequantized.get(name)) is not None and conversion.inputs:
        tensor = scope.constants.get(conversion.inputs[0])
        if tensor is not None:
            return Operand("float32", tensor.dims, constant=True)
        found = _value(name, scope)
        return replace(found, dtype="float32")
    if (tensor := scope.constants.get(name)) is not None:
        return Operand(dtype_name(tensor.data_type), tensor.dims, True, values_of(tensor))
    return _value(name, scope)


def _value(name: str, scope: Scope) -> Operand:
    known = scope.values.get(name)
    if known is None:
        # What comes out of a conversion has the shape of what goes in.
        source = scope.sources.get(name)
        return Operand() if source is None else Operand("", _value(source, scope).dims)
    dims = None if known.dims is None else tuple(dim if isinstance(dim, int) else None for dim in known.dims)
    return Operand(dtype_name(known.data_type) if known.data_type else "", dims)


def values_of(tensor: Tensor) -> tuple[Number, ...] | None:
    """The numbers of a constant that has few of them, and no infinite ones; None otherwise."""
    count = prod(tensor.dims)
    if count > _MOST_VALUES:
        return None
    if count == 0:
        return ()
    numbers = numbers_of(tensor)
    if numbers is None or not all(map(math.isfinite, numbers)):
        return None
    return tuple(int(number) if isinstance(number, bool) else number for number in numbers)


def _constant(node: Node) -> Tensor | None:
    """What a Constant node gives."""
    for attribute in node.attributes:
        if attribute.tensors:
            return attribute.tensors[0]
        if attribute.name == "value_int" and attribute.integer is not None:
            return Tensor("", 7, (), 8, None, None, (attribute.integer,))
        if attribute.name == "value_ints":
            return Tensor("", 7, (len(attribute.integers),), 0, None, None, attribute.integers)
        if attribute.name == "value_float" and attribute.number is not None:
            return Tensor("", 1, (), 4, None, None, (), struct.pack("<f", attribute.number))
        if attribute.name == "value_floats":
            count = len(attribute.numbers)
            return Tensor("", 1, (count,), 0, None, None, (), struct.pack(f"<{count}f", *attribute.numbers))
    return None


def _attribute(attribute: Attribute) -> AttributeValue:
    if attribute.graphs:
        return "graph"
    if attribute.tensors:
        return dtype_name(attribute.tensors[0].data_type)
    if attribute.texts:
        return tuple(text.decode("utf-8", "replace") for text in attribute.texts)
    if attribute.content is not None:
        return attribute.content.decode("utf-8", "replace")
    if attribute.integer is not None:
        return attribute.integer
    if attribute.number is not None:
        return attribute.number if math.isfinite(attribute.number) else str(attribute.number)
    return attribute.integers or attribute.numbers


def _quantized(node: Node, scope: Scope) -> Quantized | None:
    """The integer types around *node*: None unless all floats that go in come from integers, and what comes out goes
    to integers, if it is float.
    """
    if node.op_type in QDQ:
        return None
    activations = weights = ""
    per_channel = False
    for number, name in enumerate(node.inputs):
        conversion = scope.dequantized.get(name)
        if conversion is None:
            if name and not stays_float(node.op_type, number) and _is_float(name, scope):
                return None
            continue
        constant = scope.constants.get(conversion.inputs[0]) if conversion.inputs else None
        if constant is None:
            activations = activations or _point(conversion, scope)
        elif number in weights_of(node.op_type):
            weights = weights or dtype_name(constant.data_type)
            scale = scope.constants.get(conversion.inputs[1]) if len(conversion.inputs) > 1 else None
            per_channel = per_channel or (scale is not None and prod(scale.dims) > 1)
    quantizers = [each for name in node.outputs[:1] for each in scope.quantizers.get(name, ())]
    gives_floats = bool(node.outputs) and _is_float(node.outputs[0], scope, otherwise=True)
    if not activations or (gives_floats and not quantizers):
        return None
    return Quantized(activations, weights, per_channel)


def _is_float(name: str, scope: Scope, *, otherwise: bool = False) -> bool:
    if (tensor := scope.constants.get(name)) is not None:
        return dtype_name(tensor.data_type) in _FLOATS
    known = scope.values.get(name)
    return otherwise if known is None or not known.data_type else dtype_name(known.data_type) in _FLOATS


def _point(conversion: Node, scope: Scope) -> str:
    """The integer type of a conversion: that of its zero point, uint8 without one."""
    point = scope.constants.get(conversion.inputs[2]) if len(conversion.inputs) > 2 else None
    return "uint8" if point is None else dtype_name(point.data_type)


def turned_attributes(split: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[str, AttributeValue], ...]:
    """Of a Reshape to *split*, a Transpose by *order* and a Reshape. An axis of size 1 that stays in its place can be
    left out.
    """
    still = sum(size == 1 and order[place] == place for place, size in enumerate(split))
    return ("rank", len(split)), ("still", min(still, 1)), ("wide", sum(size != 1 for size in split))
