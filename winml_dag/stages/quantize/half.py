"""fp16: weights and activations become float16."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.stages.float_model import open_session
from winml_dag.stages.quantize import QuantizeFields
from winml_dag.stages.quantize.census import Census, count_half
from winml_dag.stages.quantize.selection import identity, matching_op_types, select

# How onnxruntime's converter calls the casts around what stays in float32.
_TO_HALF, _TO_FLOAT, _INPUT_TO_HALF = "_cast_to_fp16_node", "_cast_to_fp32_node", "graph_input_cast"


def convert_to_half(model: ModelProto, before: ModelProto, fields: QuantizeFields) -> tuple[ModelProto, Census]:
    """*model*, whose tensors must have types, in float16, changed in place. *before* is the same model.

    Constants beyond float16's range become its largest number. Operators that have no float16 form stay in float32
    whatever ``fp16_op_block_list`` says: it adds to them.

    Raises:
        StageError: for unknown nodes or operators, or when nothing is left to convert.
    """
    reasons = float_reasons(before.graph, fields)
    census = count_half(before.graph, reasons)
    if not census.quantized:
        raise StageError("No node of the model could be converted to float16.", advice="See quant.fp16_op_block_list.")
    selection = select(model.graph, fields)
    listed = matching_op_types(model.graph, fields.fp16_op_block_list or (), "fp16_op_block_list")
    others = {node.op_type for node in model.graph.node if not selection.takes(node.op_type)}
    keeps_interface = bool(fields.fp16_keep_io_types)
    half = convert_float_to_float16(
        model,
        keep_io_types=keeps_interface,
        # The types are known already, also of operators outside the standard; above 2 GiB inference in memory fails.
        disable_shape_infer=True,
        op_block_list=sorted({*DEFAULT_OP_BLOCK_LIST, *listed, *others}),
        node_block_list=list(selection.nodes),
    )
    _tidy_casts(half.graph)
    if not keeps_interface:
        _require_half_interface(half.graph)
    return half, census


def _tidy_casts(graph: GraphProto) -> None:
    """Let nodes in float32 hand each other float32, and read each tensor through one cast.

    onnxruntime's converter puts casts around every such node by itself: what overflows float16 between two of them
    would still overflow, and two that read one tensor get two casts of one name, which no session loads.
    """
    rounded = {node.output[0]: node.input[0] for node in graph.node if node.name.startswith(_INPUT_TO_HALF)}
    rounded |= {node.output[0]: node.input[0] for node in graph.node if node.name.endswith(_TO_HALF)}
    widened = {node.output[0]: node.input[0] for node in graph.node if node.name.endswith(_TO_FLOAT)}
    exact = {output: rounded[source] for output, source in widened.items() if source in rounded}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in exact:
                node.input[position] = exact[name]
    read = {value.name for value in graph.output}
    read |= {name for node in graph.node if node.output[0] not in widened for name in node.input}
    read |= {source for output, source in widened.items() if output in read}
    kept: list[NodeProto] = []
    made: set[str] = set()
    for node in graph.node:
        output = node.output[0]
        if output not in rounded.keys() | widened.keys() or (output in read and output not in made):
            kept.append(node)
        made.add(output)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def float_reasons(graph: GraphProto, fields: QuantizeFields) -> dict[str, str]:
    """Why nodes stay in float32, by identity."""
    listed = matching_op_types(graph, fields.fp16_op_block_list or (), "fp16_op_block_list")
    reasons = {}
    for node in graph.node:
        if node.op_type in DEFAULT_OP_BLOCK_LIST:
            reasons[identity(node)] = "kept in float32: no float16 form"
        elif node.op_type in listed:
            reasons[identity(node)] = "excluded by quant.fp16_op_block_list"
    return {**reasons, **select(graph, fields).reasons}


def _require_half_interface(graph: GraphProto) -> None:
    left = [
        value.name for value in (*graph.input, *graph.output) if value.type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    if left:
        raise StageError(f"{left[0]!r} stayed in float32 although fp16_keep_io_types is false.")


def check_runs(half: Path, original: Path) -> None:
    """Raise StageError unless the model *half* runs, with finite results wherever those of *original* are finite.

    float16 ends at 65504, and what overflows there becomes infinite, then no number. The CPU computes in float32 what
    it has no float16 kernels for, so this finds what overflows for certain, not all that may on other hardware.
    """
    session = open_session(half, "the model in float16")
    feeds = next(random_feeds(model_inputs(original), seed=0, count=1))
    try:
        results = _run(session, feeds)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        # A model that cannot run on random values in float32 either (lengths that depend on each other) tells nothing.
        with contextlib.suppress(Exception):
            _run(open_session(original, "the model"), feeds)
            raise StageError(f"The model in float16 does not run: {error}") from error
        return
    if all(np.isfinite(result).all() for result in results):
        return
    expected = _run(open_session(original, "the model"), feeds)
    for output, result, reference in zip(session.get_outputs(), results, expected, strict=True):
        if (~np.isfinite(result) & np.isfinite(reference)).any():
            raise StageError(
                f"In float16, output {output.name!r} has values that are infinite or no number where float32 has none.",
                advice="Keep the operators that overflow in float32: quant.fp16_op_block_list or nodes_to_exclude.",
            )


def _run(session: ort.InferenceSession, feeds: Mapping[str, NDArray[np.generic]]) -> list[NDArray[np.generic]]:
    """The outputs for *feeds* in the types that the model takes."""
    half = {argument.name for argument in session.get_inputs() if argument.type == "tensor(float16)"}
    cast = {name: array.astype(np.float16) if name in half else array for name, array in feeds.items()}
    return list(session.run(None, cast))
