"""The float model that calibrate and quantize both start from: checked, and with the type of every tensor.

Both must see the same tensors. onnxruntime's tools pass over a tensor whose type they do not know, with a line in the
log: with one operator from outside the ONNX standard, everything behind it would silently stay in float.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import resave
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.stages.infinity import clamp_certain

_HALF_TYPES = ("float16", "bfloat16")
_PROBE_FILE = Path("probe.onnx")

NOT_COMPUTING = frozenset({"Constant", "Cast"})


def refuse_unless_float(source: Path, done: str, *, weight_only_too: bool = False) -> None:
    """Raise StageError unless the model *source* is in float32, so that it can be *done* (such as "quantized").

    With *weight_only_too*, it may also have 4-bit or 8-bit weights in MatMulNBits, which float16 leaves alone.
    """
    model = inspect_model(source)
    if model.is_compiled:
        raise StageError(
            f"{source.name} is a compiled model: its EPContext nodes hold an execution provider's own binary, which"
            f" cannot be {done}.",
            advice="Use the ONNX model that it was compiled from.",
        )
    if model.is_quantized and not (weight_only_too and model.is_weight_only):
        raise StageError(
            f"{source.name} is quantized already and cannot be {done} again.", advice="Use the float32 model."
        )
    dtypes = {*model.tensor_bytes, *(spec.dtype for spec in (*model.inputs, *model.outputs))}
    half = [dtype for dtype in _HALF_TYPES if dtype in dtypes]
    if half:
        raise StageError(
            f"{source.name} has tensors in {half[0]} and cannot be {done}.", advice="Use the model in float32."
        )


def write_typed(source: Path, destination: Path, *, finite: bool = False) -> int:
    """Write the model *source* as *destination*, with the shape and type of every tensor that can be known.

    Large weights are in a file beside it and never in memory. With *finite*, constants that stand for infinity become
    numbers that integers can hold; returns how many.

    Raises:
        StageError: when the shapes that the model states contradict each other, or onnxruntime cannot load it.
    """
    resave(source, destination)
    model = onnx.load(destination, load_external_data=False)
    clamped = clamp_certain(model, destination) if finite else 0
    _forget_initializer_shapes(model.graph)
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise StageError(
            f"The shapes that the model states contradict each other: {error}", advice="Export it again."
        ) from error
    unknown = _outputs_without_type(model.graph)
    if unknown:
        _ask_onnxruntime(model, unknown)
    onnx.save(model, destination)
    return clamped


def _forget_initializer_shapes(graph: GraphProto) -> None:
    """The dynamo exporter states them as values too; they are wrong as soon as a tool transposes a weight."""
    initializers = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.value_info if value.name not in initializers]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _outputs_without_type(graph: GraphProto) -> list[str]:
    known = {value.name for value in (*graph.value_info, *graph.output) if value.type.WhichOneof("value")}
    return [name for node in graph.node for name in node.output if name and name not in known]


def _ask_onnxruntime(model: ModelProto, names: list[str]) -> None:
    """Add what onnxruntime, which also knows its own operators, says of the float tensors *names*.

    A session tells the types of its outputs; a model that it writes to disk carries none.
    """
    probe = ModelProto()
    probe.CopyFrom(model)
    for name in names:
        probe.graph.output.add(name=name)
    onnx.save(probe, _PROBE_FILE)
    for argument in open_session(_PROBE_FILE, "the model").get_outputs():
        if argument.name in names and argument.type == "tensor(float)":
            model.graph.value_info.append(
                helper.make_tensor_value_info(argument.name, TensorProto.FLOAT, argument.shape)
            )


def open_session(path: Path, what: str) -> ort.InferenceSession:
    """A CPU session of the model as it is, nothing fused.

    Raises:
        StageError: when onnxruntime cannot load it; the sentence calls it *what*.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise StageError(f"onnxruntime cannot load {what}: {error}") from error


def float_tensors(graph: GraphProto) -> frozenset[str]:
    """Names of all float32 activations: what nodes of the graph itself take and make, initializers left out."""
    initializers = {tensor.name for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    used = {name for node in graph.node for name in (*node.input, *node.output)}
    return frozenset((floats & used) - initializers)


def float_values(graph: GraphProto) -> frozenset[str]:
    """:func:`float_tensors` and the float32 initializers."""
    return float_tensors(graph) | {tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}


def compute_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes that compute with floats: constants, type conversions and integer arithmetic on shapes are none."""
    floats = float_values(graph)
    for node in graph.node:
        if node.op_type not in NOT_COMPUTING and any(name in floats for name in (*node.input, *node.output)):
            yield node
