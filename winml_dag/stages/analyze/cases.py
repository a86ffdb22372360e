"""Derives the case of a node of a model, for tables. Lookup and measurement both use it, so that they agree."""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod

from winml_dag.ep.support import AttributeValue, Case, Operand, Quantized
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.facts import CHANNEL_AXES, QDQ, dtype_name
from winml_dag.onnxmodel.graph import Attribute, Node

_FLOATS = frozenset({"float32", "float16", "float64", "bfloat16"})
# Constant inputs that stay float when their operator is quantized: sizes, bounds and factors.
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


def case_of(node: Node, flow: Dataflow) -> Case:
    """The case of *node*. Conversions around it count as the integer types that it is quantized with."""
    quantized = _quantized(node, flow)
    operands = tuple(_input(name, flow, quantized is not None) for name in _given(node.inputs))
    return Case(
        node.op_type,
        node.domain,
        flow.model.opsets.get(node.domain, 0),
        operands,
        tuple(replace(operand_of(name, flow), constant=False) if name else None for name in _given(node.outputs)),
        tuple(sorted((attribute.name, _attribute(attribute)) for attribute in node.attributes)),
        quantized,
    )


def as_quantized(case: Case, activations: str, weights: str, *, per_channel: bool = False) -> Case:
    """Return *case* as quantized with these integer types; unchanged if it has no floats."""
    floats = [operand for operand in case.inputs if operand is not None and operand.dtype in ("float32", "")]
    if case.quantized is not None or not floats:
        return case
    if not _has_weights(case):
        return replace(case, quantized=Quantized(activations, ""))
    return replace(case, quantized=Quantized(activations, weights, per_channel and case.op_type in CHANNEL_AXES))


def _has_weights(case: Case) -> bool:
    """Whether *case* has a constant that quantizing turns into integers of the weight type."""
    known = (case.inputs[number] for number in _WEIGHTS.get(case.op_type, ()) if number < len(case.inputs))
    return any(operand is not None and operand.constant for operand in known)


def _given(names: tuple[str, ...]) -> tuple[str, ...]:
    """Drop empty names at the end: an empty name and an omitted input mean the same."""
    last = len(names)
    while last and not names[last - 1]:
        last -= 1
    return names[:last]


def operand_of(name: str, flow: Dataflow) -> Operand:
    """The value *name* as an operand."""
    tensor = flow.constants.get(name)
    dims = flow.dims(name)
    if dims is None and (maker := flow.makers.get(name)) is not None and maker.op_type in QDQ:
        dims = operand_of(maker.inputs[0], flow).dims  # the same as those of its input
    return Operand(flow.dtype(name), dims, tensor is not None)


def _input(name: str, flow: Dataflow, quantized: bool) -> Operand | None:
    if not name:
        return None
    found = operand_of(name, flow)
    if quantized and (conversion := _dequantized(name, flow)) is not None:
        tensor = flow.constants.get(conversion.inputs[0])
        return Operand("float32", found.dims if tensor is None else tensor.dims, constant=tensor is not None)
    return found


def _dequantized(name: str, flow: Dataflow) -> Node | None:
    """The DequantizeLinear that produces the value *name*."""
    maker = flow.makers.get(name)
    return maker if maker is not None and maker.op_type == "DequantizeLinear" and maker.inputs else None


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


def _quantized(node: Node, flow: Dataflow) -> Quantized | None:
    """The integer types around *node*; None unless all its floats are converted.

    That is, all float inputs come from integers, and float outputs are converted to integers.
    """
    if node.op_type in QDQ:
        return None
    activations = weights = ""
    per_channel = False
    for number, name in enumerate(node.inputs):
        conversion = _dequantized(name, flow)
        if conversion is None:
            if name and number not in _STAY_FLOAT.get(node.op_type, ()) and _is_float(name, flow):
                return None
            continue
        constant = flow.constants.get(conversion.inputs[0])
        if constant is None:
            activations = activations or _point(conversion, flow)
        elif number in _WEIGHTS.get(node.op_type, ()):
            weights = weights or dtype_name(constant.data_type)
            scale = flow.constants.get(conversion.inputs[1]) if len(conversion.inputs) > 1 else None
            per_channel = per_channel or (scale is not None and prod(scale.dims) > 1)
    gives_floats = bool(node.outputs) and _is_float(node.outputs[0], flow, otherwise=True)
    if not activations or (gives_floats and not _is_quantized(node.outputs[0], flow)):
        return None
    return Quantized(activations, weights, per_channel)


def _is_quantized(name: str, flow: Dataflow) -> bool:
    """Whether a QuantizeLinear reads the value *name*."""
    return any(node.op_type == "QuantizeLinear" and node.inputs[0] == name for node in flow.readers.get(name, ()))


def _is_float(name: str, flow: Dataflow, *, otherwise: bool = False) -> bool:
    dtype = flow.dtype(name)
    return dtype in _FLOATS if dtype else otherwise


def _point(conversion: Node, flow: Dataflow) -> str:
    """The integer type of a conversion: that of its zero point, uint8 without one."""
    point = flow.constants.get(conversion.inputs[2]) if len(conversion.inputs) > 2 else None
    return "uint8" if point is None else dtype_name(point.data_type)
