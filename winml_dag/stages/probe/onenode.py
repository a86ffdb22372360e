"""A model of one node and its inputs, for a trial of a provider. Made from a case, and read back as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from winml_dag.ep.support.case import AttributeValue, Case, Operand, Quantized
from winml_dag.onnxmodel.dataflow import Dataflow
from winml_dag.onnxmodel.graphfile import read_model
from winml_dag.stages.probe.cases import bias_of, case_of, stays_float, weights_of

Array = npt.NDArray[Any]

# The name of the node under test, among the conversions around it.
PROBED = "probed"
_IR_VERSION = 10
_SIXTEEN_BITS_FROM = 21  # below, 16-bit conversions are not in the ONNX standard
_LEVELS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
_INT4 = {"int4": (TensorProto.INT4, -8, 7), "uint4": (TensorProto.UINT4, 0, 15)}
# Operators whose outputs always lie within these bounds: a quantizer uses the bounds, whatever the numbers are.
_BOUNDED = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
# Operators whose outputs have the values of their inputs, and therefore their scale.
_KEEPS_VALUES = frozenset({
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "MaxPool",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip


@dataclass(frozen=True)
class OneNode:
    """One use of an operator, with values.

    Attributes:
        inputs: None for an omitted input.
        constants: the indices of constant inputs.
        open_axes: input and axis of each size that the model leaves open.
        output_types: ONNX types; 0 for an omitted output.
        attributes: values, or protos for values that are not plain.
        ranges: minimum and maximum of each output, for its scale; empty if nothing is quantized.
    """

    op_type: str
    opset: int
    inputs: tuple[Array | None, ...]
    output_types: tuple[int, ...]
    domain: str = ""
    attributes: Mapping[str, AttributeValue | AttributeProto] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    open_axes: frozenset[tuple[int, int]] = frozenset()
    quantized: Quantized | None = None
    ranges: tuple[tuple[float, float], ...] = ()

    def model(self) -> ModelProto:
        """The ONNX model, with the conversions around the node that its integer types require."""
        return _Writer(self).model()

    def feeds(self) -> dict[str, Array]:
        """The inputs to run the model with."""
        return {
            _input_name(number): array
            for number, array in enumerate(self.inputs)
            if array is not None and number not in self.constants
        }

    def with_ranges(self, outputs: Sequence[Array | None]) -> OneNode:
        """Set the scales from *outputs*, which were computed without conversions."""
        return replace(self, ranges=tuple(_range(output) for output in outputs))


class _Writer:
    """Builds one model."""

    def __init__(self, of: OneNode) -> None:
        self.of = of
        self.nodes: list[NodeProto] = []
        self.after: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.scales: dict[int, Array] = {}

    def model(self) -> ModelProto:
        of = self.of
        names = [self._input(number, array) for number, array in enumerate(of.inputs)]
        outputs = [self._output(number, kind) for number, kind in enumerate(of.output_types)]
        node = helper.make_node(of.op_type, names, [inner for inner, _ in outputs], name=PROBED, domain=of.domain)
        for name, value in sorted(of.attributes.items()):
            # Otherwise a list without members has no type.
            kind = AttributeProto.INTS if value == () else None
            attribute = (
                value if isinstance(value, AttributeProto) else helper.make_attribute(name, value, attr_type=kind)
            )
            node.attribute.append(attribute)
        graph = helper.make_graph(
            [*self.nodes, node, *self.after],
            "one_node",
            [self._fed(name, array) for name, array in of.feeds().items()],
            [
                helper.make_tensor_value_info(outer, kind, None)
                for (_, outer), kind in zip(outputs, of.output_types, strict=True)
                if kind
            ],
            self.initializers,
        )
        domains = {node.domain for node in graph.node} - {"", of.domain}
        opsets = [helper.make_opsetid(name, 1) for name in sorted(domains)]
        if of.domain:
            opsets += [helper.make_opsetid(of.domain, of.opset), helper.make_opsetid("", 17)]
        else:
            opsets += [helper.make_opsetid("", of.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)

    def _fed(self, name: str, array: Array) -> Any:
        number = int(name[1:])
        dims = [
            f"size_{number}_{axis}" if (number, axis) in self.of.open_axes else size
            for axis, size in enumerate(array.shape)
        ]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)

    def _input(self, number: int, array: Array | None) -> str:
        if array is None:
            return ""
        name, quantized, op_type = _input_name(number), self.of.quantized, self.of.op_type
        floats = array.dtype == np.float32 and not stays_float(op_type, number)
        if quantized is None or not floats:
            if number in self.of.constants:
                self.initializers.append(
                    numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
                )
            return name
        if number not in self.of.constants:
            scale, point = _encoding(quantized.activations, *_range(array))
            self.scales[number] = np.asarray(scale, np.float32)
            return self._converted(name, f"{name}_in", quantized.activations, scale, point, self.nodes)
        if number == bias_of(op_type) and {0, 1} <= self.scales.keys():
            both = np.asarray(self.scales[0] * self.scales[1], np.float32).reshape(-1)
            # One scale per channel, unless channels of several groups share one.
            both = both if both.size == array.size > 1 else np.asarray(both.max(), np.float32)
            integers, points = np.round(array / both).astype(np.int32), np.zeros_like(both, np.int32)
            return self._constant(name, integers, both, points, axis=0 if both.size > 1 else None)
        if number in weights_of(op_type):
            return self._weights(name, number, array, quantized)
        scale, point = _encoding(quantized.activations, *_range(array))
        self.scales[number] = np.asarray(scale, np.float32)
        integers = _integers(array, scale, point, quantized.activations)
        return self._constant(name, integers, np.float32(scale), np.asarray(point, quantized.activations))

    def _weights(self, name: str, number: int, array: Array, quantized: Quantized) -> str:
        kind = quantized.weights
        axis = _channel_axis(self.of, array) if quantized.per_channel and array.ndim > 1 else None
        if axis is None:
            scale: Any
            scale, point = _encoding(kind, *_range(array), symmetric=kind != "uint8")
            self.scales[number] = np.asarray(scale, np.float32)
            integers = _integers(array, scale, point, kind)
            return self._constant(name, integers, np.float32(scale), np.asarray(point), kind)
        others = tuple(each for each in range(array.ndim) if each != axis)
        most = np.maximum(np.abs(array).max(axis=others, keepdims=True), 1e-6)
        scale = (most / (_limits(kind)[1] if kind != "uint8" else 127)).astype(np.float32)
        point = 128 if kind == "uint8" else 0
        self.scales[number] = scale.reshape(-1)
        integers = _integers(array, scale, point, kind)
        points = np.full(scale.size, point)
        return self._constant(name, integers, scale.reshape(-1), points, kind, axis=axis)

    def _constant(
        self, name: str, integers: Array, scale: Any, point: Array, kind: str = "", *, axis: int | None = None
    ) -> str:
        """Add an integer constant, with the conversion to float."""
        kind = kind or str(integers.dtype)
        for suffix, value in (("", integers), ("_point", point)):
            self.initializers.append(_tensor(f"{name}{suffix}", value, kind))
        self.initializers.append(numpy_helper.from_array(np.asarray(scale, np.float32), f"{name}_scale"))
        self._conversion("DequantizeLinear", name, f"{name}_dq", name, kind, self.nodes, axis)
        return f"{name}_dq"

    def _output(self, number: int, kind: int) -> tuple[str, str]:
        """The name of the node's output, and the name of the model's output."""
        if not kind:
            return "", ""
        name, quantized = f"y{number}", self.of.quantized
        if quantized is None or kind != TensorProto.FLOAT:
            return name, name
        if self.of.op_type in _KEEPS_VALUES and self.of.inputs and self.of.inputs[0] is not None:
            low, high = _range(self.of.inputs[0])
        elif self.of.op_type in _BOUNDED:
            low, high = _BOUNDED[self.of.op_type]
        else:
            low, high = self.of.ranges[number] if number < len(self.of.ranges) else (-1.0, 1.0)
        scale, point = _encoding(quantized.activations, low, high)
        outer = self._converted(name, f"{name}_out", quantized.activations, scale, point, self.after)
        return name, outer

    def _converted(self, source: str, prefix: str, kind: str, scale: float, point: int, to: list[NodeProto]) -> str:
        """Convert *source* to integers and back."""
        self.initializers.append(numpy_helper.from_array(np.asarray(scale, np.float32), f"{prefix}_scale"))
        self.initializers.append(_tensor(f"{prefix}_point", np.asarray(point), kind))
        self._conversion("QuantizeLinear", source, f"{prefix}_q", prefix, kind, to, None)
        self._conversion("DequantizeLinear", f"{prefix}_q", f"{prefix}_dq", prefix, kind, to, None)
        return f"{prefix}_dq"

    def _conversion(
        self, op_type: str, source: str, result: str, prefix: str, kind: str, to: list[NodeProto], axis: int | None
    ) -> None:
        standard = 17 if self.of.domain else self.of.opset
        foreign = kind not in ("uint8", "int8", "int32") and standard < _SIXTEEN_BITS_FROM
        given: dict[str, Any] = {} if axis is None else {"axis": axis}
        domain = "com.microsoft" if foreign else ""
        names = [source, f"{prefix}_scale", f"{prefix}_point"]
        to.append(helper.make_node(op_type, names, [result], name=f"{result}_node", domain=domain, **given))


def _input_name(number: int) -> str:
    return f"x{number}"


def _range(array: Array | None) -> tuple[float, float]:
    if array is None or array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
        return -1.0, 1.0
    return float(min(array.min(), 0.0)), float(max(array.max(), 0.0))


def _limits(kind: str) -> tuple[int, int]:
    return _LEVELS[kind] if kind in _LEVELS else _INT4[kind][1:]


def _encoding(kind: str, low: float, high: float, *, symmetric: bool = False) -> tuple[float, int]:
    """Scale and zero point for values from *low* to *high*."""
    least, most = _limits(kind)
    if symmetric:
        return max(abs(low), abs(high), 1e-4) / most, 0
    scale = max(high - low, 1e-4) / (most - least)
    return scale, int(np.clip(round(least - low / scale), least, most))


def _integers(array: Array, scale: Any, point: int, kind: str) -> Array:
    found = np.clip(np.round(array / scale) + point, *_limits(kind))
    return np.asarray(found, kind if kind in _LEVELS else np.int8)


def _tensor(name: str, values: Array, kind: str) -> TensorProto:
    if kind in _INT4:
        return helper.make_tensor(name, _INT4[kind][0], values.shape, values.reshape(-1).tolist())
    return numpy_helper.from_array(np.asarray(values, kind), name)


def _channel_axis(of: OneNode, array: Array) -> int:
    if of.op_type == "Conv":
        return 0
    if of.op_type == "ConvTranspose":
        return 1
    if of.op_type == "Gemm":
        return 0 if of.attributes.get("transB") else 1
    return array.ndim - 1


_TENSOR_ATTRIBUTES = {"ConstantOfShape": "value"}
# Inputs that determine the output shape.
_TARGET_SHAPES = {("Reshape", 1), ("Expand", 1)}
_OPEN_SIZE = 2


class UnmakeableError(Exception):
    """The case does not contain enough to make a model from it."""


def one_node(case: Case, seed: int = 0) -> OneNode:
    """The model of *case*, with numbers from *seed*. Open sizes stay open, and are fed as 2.

    Raises:
        UnmakeableError: the case has inner graphs, unknown types or ranks, or types that numpy does not have.
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


def case_of_model(model: bytes, folder: Path) -> Case:
    """The case of the node called ``PROBED`` in *model*, read from a file in *folder*."""
    path = folder / "one_node.onnx"
    path.write_bytes(model)
    read = read_model(path, values=True)
    node = next(node for node in read.graph.nodes if node.name == PROBED)
    return case_of(node, Dataflow(read))
