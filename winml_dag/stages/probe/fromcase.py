"""A model of one node out of a case: weights and inputs are made up, always the same."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, helper

from winml_dag.ep.support.case import AttributeValue, Case, Operand
from winml_dag.stages.probe.onenode import Array, OneNode

_TENSOR_ATTRIBUTES = {"ConstantOfShape": "value"}
# Inputs that say what shape comes out.
_TARGET_SHAPES = {("Reshape", 1), ("Expand", 1)}
_OPEN_SIZE = 2


class UnmakeableError(Exception):
    """The case does not say enough to make a model of it."""


def one_node(case: Case, seed: int = 0) -> OneNode:
    """The model of *case*, with numbers of *seed*. Sizes that it leaves open are open, and fed as 2.

    Raises:
        UnmakeableError: for a case with inner graphs, types or ranks that are not known, or types that numpy has not.
    """
    numbers = np.random.default_rng(seed)
    inputs = tuple(_array(case, at, operand, numbers) for at, operand in enumerate(case.inputs))
    return OneNode(
        case.op_type,
        case.opset or 1,
        inputs,
        tuple(_output_type(case, operand) for operand in case.outputs),
        case.domain,
        {name: _attribute(case.op_type, name, value) for name, value in case.attributes},
        frozenset(at for at, operand in enumerate(case.inputs) if operand is not None and operand.constant),
        frozenset(
            (at, axis)
            for at, operand in enumerate(case.inputs)
            if operand is not None and not operand.constant
            for axis, size in enumerate(operand.dims or ())
            if size is None
        ),
        case.quantized,
    )


def _array(case: Case, at: int, operand: Operand | None, numbers: np.random.Generator) -> Array | None:
    if operand is None:
        return None
    if not operand.dtype or operand.dims is None:
        raise UnmakeableError(f"the type or the rank of its input {at} is not known")
    try:
        kind = np.dtype(operand.dtype)
    except TypeError:
        raise UnmakeableError(f"{operand.dtype}, the type of its input {at}, has no numbers here") from None
    shape = tuple(_OPEN_SIZE if size is None else size for size in operand.dims)
    if operand.values is not None:
        return np.asarray(operand.values, kind).reshape(shape)
    if (case.op_type, at) in _TARGET_SHAPES and case.outputs and case.outputs[0] is not None:
        wanted = case.outputs[0].dims
        if wanted is not None and None not in wanted and (len(wanted),) == shape:
            return np.asarray(wanted, kind)
    if kind.kind == "f":
        return np.asarray(numbers.uniform(0.1, 1.0, shape), kind)
    return np.asarray(numbers.integers(0, 2, shape), kind)


def _output_type(case: Case, operand: Operand | None) -> int:
    if operand is None:
        return 0
    if operand.dtype:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype)))
    if case.op_type in ("Cast", "QuantizeLinear") or not case.inputs or case.inputs[0] is None:
        raise UnmakeableError("the type of its output is not known")
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(case.inputs[0].dtype)))


def _attribute(op_type: str, name: str, value: AttributeValue) -> AttributeValue | AttributeProto:
    if value == "graph":
        raise UnmakeableError(f"its attribute {name} is a graph")
    if _TENSOR_ATTRIBUTES.get(op_type) == name:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(str(value)))
        return helper.make_attribute(name, helper.make_tensor("value", kind, (1,), [1]))
    return value
