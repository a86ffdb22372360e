"""From a draft to one use of an operator: its type, its opset, what of it is constant, and what is left open. What ONNX
itself does not allow is refused here, since no model has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, shape_inference

from winml_dag.ep.support.case import Quantized
from winml_dag.stages.probe.attempt import run_on_cpu
from winml_dag.stages.probe.cases import stays_float, takes_channels, weights_of
from winml_dag.stages.probe.onenode import Array, OneNode
from winml_dag.stages.probe.samples.draw import TYPES, Draft, Draw

# Exporters write 17 and 18 mostly, and 21 where integers of 16 bits are wanted.
_OPSETS = {7: 0.4, 8: 0.2, 9: 0.4, 10: 0.3, 11: 1.0, 12: 1.0, 13: 2.0, 14: 1.5, 15: 1.0, 16: 1.0, 17: 4.0, 18: 3.0,
           19: 1.0, 20: 2.0, 21: 3.0, 22: 1.0, 23: 1.5, 24: 0.7, 25: 0.3}  # fmt: skip
INTEGERS = (
    (Quantized("uint8", "uint8"), 3.0),
    (Quantized("uint16", "uint8"), 3.0),
    (Quantized("uint8", "uint8", True), 1.5),
    (Quantized("uint16", "uint8", True), 1.5),
    (Quantized("uint8", "int8"), 1.0),
    (Quantized("uint16", "int8"), 1.0),
    (Quantized("uint8", "int8", True), 2.0),
    (Quantized("uint16", "int8", True), 2.0),
    (Quantized("uint16", "int16"), 2.0),
    (Quantized("int8", "int8"), 1.0),
    (Quantized("int8", "int8", True), 0.5),
    (Quantized("uint16", "int4", True), 0.7),
    (Quantized("int16", "int16"), 0.5),
)
# Operators of onnxruntime in the domain of the standard, which has no schema of them.
_NO_SCHEMA = frozenset({"SimplifiedLayerNormalization"})
_MOST_OPEN_AXES = 2
_CONVERSIONS_FROM = 10
_CHANNELS_FROM = 13


class InvalidError(Exception):
    """What was drawn is no model that ONNX allows."""


def settle(draft: Draft, draw: Draw) -> OneNode:
    """One use of an operator out of *draft*.

    Raises:
        InvalidError: when ONNX does not allow it.
    """
    opset = 1
    if not draft.domain:
        least, most = draft.opsets
        possible = [(opset, weight) for opset, weight in _OPSETS.items() if least <= opset <= most]
        if not possible:
            raise InvalidError
        opset = draw.weighted(possible)
    kind = draw.weighted(TYPES[draft.types])
    inputs = [_typed(array, kind) if number not in draft.keeps else array for number, array in enumerate(draft.inputs)]
    while inputs and inputs[-1] is None:
        inputs.pop()
    constants = {number for number in draft.constants if draw.chance(0.93)}
    constants |= {number for number in draft.weights if draw.chance(0.5)}
    return finish(
        OneNode(
            draft.op_type,
            opset,
            tuple(inputs),
            (TensorProto.FLOAT,) * draft.outputs,
            draft.domain,
            draft.attributes,
            frozenset(number for number in constants if number < len(inputs) and inputs[number] is not None),
        ),
        draw,
        quantizes=draft.quantizes and kind == "float32",
    )


def finish(node: OneNode, draw: Draw, *, quantizes: bool) -> OneNode:
    """*node* with the types of its outputs, with sizes left open now and then, and often quantized, if it may be.

    Raises:
        InvalidError: when ONNX does not allow it.
    """
    node = with_output_types(node)
    if draw.chance(0.08):
        node = replace(node, open_axes=_open_axes(node, draw))
    if quantizes and node.opset >= _CONVERSIONS_FROM and draw.chance(0.5):
        return quantized(node, draw.weighted(INTEGERS))
    return node


def with_output_types(node: OneNode) -> OneNode:
    """*node* with what its outputs are; all of the type of the first input where there is no schema.

    Raises:
        InvalidError: when ONNX does not allow it.
    """
    first = next((array for array in node.inputs if array is not None), None)
    if node.domain == "com.microsoft" or node.op_type in _NO_SCHEMA:
        kind = TensorProto.FLOAT if first is None else onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
        return replace(node, output_types=tuple(kind for _ in node.output_types))
    model = node.model()
    for output in model.graph.output:
        output.ClearField("type")
    try:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        found = tuple(output.type.tensor_type.elem_type for output in inferred.graph.output)
        if not all(found):
            raise InvalidError
        for output in inferred.graph.output:
            output.type.tensor_type.shape.SetInParent()  # asked for, and unknown where it depends on numbers
        onnx.checker.check_model(inferred)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, TypeError, ValueError) as error:
        raise InvalidError from error
    return replace(node, output_types=found)


def quantized(node: OneNode, types: Quantized) -> OneNode:
    """*node* between conversions to *types*, as far as it has floats; itself where it has none."""
    floats = [
        number
        for number, array in enumerate(node.inputs)
        if array is not None and array.dtype == np.float32 and not stays_float(node.op_type, number)
    ]
    if not floats or set(floats) <= node.constants:
        return node
    weights = [number for number in weights_of(node.op_type) if number in node.constants]
    per_channel = types.per_channel and takes_channels(node.op_type) and node.opset >= _CHANNELS_FROM
    per_channel = per_channel and any(_rank(node.inputs, number) > 1 for number in weights)
    types = Quantized(types.activations, types.weights if weights else "", per_channel)
    results = run_on_cpu(node.model().SerializeToString(), node.feeds())
    return replace(node, quantized=types).with_ranges(results or ())


def _rank(inputs: Sequence[Array | None], number: int) -> int:
    array = inputs[number]
    return 0 if array is None else array.ndim


def _typed(array: Array | None, kind: str) -> Array | None:
    if array is None or array.dtype != np.float32:
        return array
    if kind in ("float32", "float16", "float64"):
        return array.astype(kind)
    if kind == "bool":
        return np.asarray(array > 0)
    return np.asarray(np.round(np.abs(array) if kind.startswith("u") else array), kind)


def _open_axes(node: OneNode, draw: Draw) -> frozenset[tuple[int, int]]:
    axes = [
        (number, axis)
        for number, array in enumerate(node.inputs)
        if array is not None and number not in node.constants
        for axis in range(array.ndim)
    ]
    return frozenset(draw.some(axes)[:_MOST_OPEN_AXES]) if axes else frozenset()
