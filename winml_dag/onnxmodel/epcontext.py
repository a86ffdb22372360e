"""An EPContext model made around a binary that another tool has compiled, so that onnxruntime can load that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import InputError
from winml_dag.onnxmodel.graph import Value
from winml_dag.onnxmodel.graphfile import read_model

if TYPE_CHECKING:
    from onnx import ValueInfoProto

_OPSET = 21
_IR_VERSION = 10


@dataclass(frozen=True)
class Context:
    """A binary, and what onnxruntime has to know of it.

    Attributes:
        source: the execution provider that runs it, by its full name.
        graph: the name of the graph in it.
        sdk_version: of the tool that made it.
    """

    binary: Path
    source: str
    graph: str
    sdk_version: str


def wrap_context(context: Context, model: Path, output: Path, *, embed: bool) -> None:
    """Write to *output* a model with the inputs and outputs of *model*, of which *context* computes all. The binary is
    inside (*embed*), or else has to lie beside *output*.

    Raises:
        InputError: when *model* has an input or output that is no tensor of a fixed shape.
    """
    from onnx import helper

    graph = read_model(model).graph
    constants = {tensor.name for tensor in graph.initializers}
    inputs = [_value(model, value) for value in graph.inputs if value.name not in constants]
    outputs = [_value(model, value) for value in graph.outputs]
    node = helper.make_node(
        "EPContext",
        [value.name for value in inputs],
        [value.name for value in outputs],
        name=context.graph,
        domain="com.microsoft",
        embed_mode=int(embed),
        ep_cache_context=context.binary.read_bytes() if embed else context.binary.name.encode(),
        ep_sdk_version=context.sdk_version,
        main_context=1,
        partition_name=context.graph,
        source=context.source,
    )
    made = helper.make_model(
        helper.make_graph([node], context.graph, inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=_IR_VERSION,
    )
    output.write_bytes(made.SerializeToString(deterministic=True))


def _value(model: Path, value: Value) -> ValueInfoProto:
    from onnx import helper

    if not value.data_type or value.dims is None or not all(isinstance(dim, int) for dim in value.dims):
        raise InputError(f"{model}: {value.name!r} is no tensor of a fixed shape, as a compiled model needs it.")
    return helper.make_tensor_value_info(value.name, value.data_type, value.dims)
