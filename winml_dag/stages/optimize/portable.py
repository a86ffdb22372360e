"""The portable level: onnxruntime's basic optimizations, which every execution provider understands the result of."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import GraphProto, ModelProto

from winml_dag.ep.session import reason
from winml_dag.errors import StageError
from winml_dag.stages.optimize.names import names_in, rename_generated

# The next level, "extended", is for CPUs: a compiler for NPUs leaves its operators out, and the model falls apart (a
# ResNet-50 into 34 parts, compiled in 528 s instead of 1 s).
_LEVEL = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
# onnxruntime's name for the conversions that it puts around what its CPU kernels cannot do in float16.
_INSERTED_CAST = "InsertedPrecisionFreeCast_"
_INLINE_BELOW_BYTES = 1024


def to_portable_level(
    source: Path, destination: Path, *, keep_shapes: bool = False, without: Set[str] = frozenset()
) -> None:
    """Write the model *source*, optimized, as *destination*, its large weights beside it in ``<name>.data``.

    Fuses only within the ONNX standard, folds constants, removes what has no effect. The weights are always apart, so
    that what comes after handles a small graph, whatever the model's size. All shapes are inferred anew, since
    exporters leave some of another version of the graph behind; with *keep_shapes*, what inference does not find stays
    as *source* says. *without* names transformers of onnxruntime's that are not to run. Peak of memory: the weights
    once; much less for weights in files of their own, which are mapped.

    Raises:
        StageError: when onnxruntime cannot load the model or has to convert float16, or the stated shapes contradict
            each other.
    """
    optimize_in_session(source, destination, _LEVEL, without)
    model = onnx.load(destination, load_external_data=False)
    _refuse_half_precision(model)
    _order_initializers(model.graph)
    rename_generated(model, names_in(source))
    if not keep_shapes:
        del model.graph.value_info[:]
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise StageError(f"The shapes that the model states contradict each other: {error}") from error
    _order_value_info(model.graph)
    onnx.save(model, destination)


def optimize_in_session(source: Path, destination: Path, level: ort.GraphOptimizationLevel, without: Set[str]) -> None:
    """Write *source* as onnxruntime has it at *level*, but for the transformers *without*; large weights are apart.

    Raises:
        StageError: when onnxruntime cannot load the model.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(destination)
    options.log_severity_level = 3
    # A folded sum must not depend on the number of cores.
    options.intra_op_num_threads = 1
    for name, value in {
        # The session is never run: no second copy of the weights in a layout for running.
        "session.disable_prepacking": "1",
        "session.optimized_model_external_initializers_file_name": f"{destination.name}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_INLINE_BELOW_BYTES),
    }.items():
        options.add_session_config_entry(name, value)
    try:
        ort.InferenceSession(
            str(source), options, providers=["CPUExecutionProvider"], disabled_optimizers=sorted(without)
        )
    except Exception as error:  # onnxruntime's errors have no base class of their own
        raise StageError(
            f"onnxruntime cannot load the model to optimize it: {reason(error)}",
            advice="Check the model, or set skip_optimize to use it as it is.",
        ) from error
    if not destination.is_file():
        raise StageError(f"onnxruntime optimized {source.name} but wrote no model.")


def _refuse_half_precision(model: ModelProto) -> None:
    """onnxruntime put casts around float16 operators: keeping them would undo the half precision."""
    if any(node.name.startswith(_INSERTED_CAST) for node in model.graph.node):
        raise StageError(
            "The model computes in float16, which cannot be optimized without casts back to float32.",
            advice="Optimize the float32 model and set precision fp16, or set skip_optimize.",
        )


def _order_initializers(graph: GraphProto) -> None:
    """onnxruntime writes them in the order of a hash table, which may differ between systems."""
    ordered = sorted(graph.initializer, key=lambda initializer: initializer.name)
    del graph.initializer[:]
    graph.initializer.extend(ordered)


def _order_value_info(graph: GraphProto) -> None:
    """Entries in the order of the nodes that make the values, and of these values only."""
    known = {entry.name: entry for entry in graph.value_info}
    outputs = {output.name for output in graph.output}
    ordered = [known[name] for node in graph.node for name in node.output if name in known and name not in outputs]
    del graph.value_info[:]
    graph.value_info.extend(ordered)
