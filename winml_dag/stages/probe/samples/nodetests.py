"""ONNX's own node tests: as they are, and with other types, opsets, constants and open sizes."""

from __future__ import annotations

import contextlib
import io
import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from onnx import NodeProto

from winml_dag.stages.probe.onenode import Array, OneNode
from winml_dag.stages.probe.samples.draw import Draw
from winml_dag.stages.probe.samples.settle import InvalidError, finish, with_output_types

_TYPES = (("float32", 4.0), ("float16", 2.0), ("float64", 1.0), ("int32", 1.0), ("int64", 1.0))
_SMALLEST_OPSET = 7


@dataclass(frozen=True)
class NodeTest:
    """One of ONNX's tests, with what the operator is defined to give."""

    name: str
    node: OneNode
    expected: tuple[Array, ...]


@cache
def node_tests() -> tuple[NodeTest, ...]:
    """Those of one node whose inputs and outputs are tensors of numbers and truths, sorted by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        tests = collect_testcases(None)
    found = (_node_test(test) for test in sorted(tests, key=lambda test: str(test.name)))
    return tuple(test for test in found if test is not None)


def _node_test(test: Any) -> NodeTest | None:
    if test.model is None or len(test.model.graph.node) != 1 or not test.data_sets:
        return None
    node: NodeProto = test.model.graph.node[0]
    inputs, outputs = test.data_sets[0]
    fed = dict(zip((value.name for value in test.model.graph.input), inputs, strict=False))
    if not all(_is_tensor(value) for value in (*inputs, *outputs)) or len(fed) < len(test.model.graph.input):
        return None
    arrays = tuple(np.asarray(fed[name]) if name else None for name in node.input)
    types = {value.name: value.type.tensor_type.elem_type for value in test.model.graph.output}
    opset = next(each.version for each in test.model.opset_import if each.domain == node.domain)
    one = OneNode(
        node.op_type,
        opset,
        arrays,
        tuple(types.get(name, 0) for name in node.output),
        node.domain,
        {attribute.name: attribute for attribute in node.attribute},
    )
    return NodeTest(test.name, one, tuple(np.asarray(value) for value in outputs))


def _is_tensor(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "fiub"


def varied(test: NodeTest, draw: Draw) -> OneNode:
    """*test* as something else that is drawn.

    Raises:
        InvalidError: when ONNX does not allow it.
    """
    node = test.node
    if node.domain:
        raise InvalidError
    kind = draw.weighted(_TYPES)
    main = next((array.dtype for array in node.inputs if array is not None and array.dtype.kind == "f"), None)
    if main is not None and kind != main:
        node = replace(node, inputs=tuple(_as(array, main, kind) for array in node.inputs))
    if draw.chance(0.6) and node.opset > _SMALLEST_OPSET:
        node = replace(node, opset=draw.integer(max(_SMALLEST_OPSET, node.opset - 8), node.opset + 3))
    later = [number for number, array in enumerate(node.inputs) if number and array is not None]
    if draw.chance(0.6):
        node = replace(node, constants=frozenset(draw.some(later, 0)) if later else frozenset())
    return finish(with_output_types(node), draw, quantizes=kind == "float32" and main is not None)


def _as(array: Array | None, main: np.dtype[Any], kind: str) -> Array | None:
    return array.astype(kind) if array is not None and array.dtype == main else array
