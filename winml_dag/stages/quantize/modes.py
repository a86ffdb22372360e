"""The work of the quantize stage: modes for integers with ranges, integers without ranges, and float16."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.ep.session import open_session
from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.onnxmodel.protos import Naming, graphs_of, rename_values, replace_items, sort_nodes
from winml_dag.stages.float_model import refuse_unless_float, write_typed
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.quantize.coverage import Quantized
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.ranges import Ranges

# Check a quantized model by running it: with and without graph optimizations, it must output the same values.
#
# onnxruntime fuses Q, DQ and the nodes between them into integer kernels. A scale of the wrong shape fails in one form
# and is never read in the other, and a fusion may compute something else. Either is wrong for some users.

_Array = NDArray[np.generic]

# The two forms may differ by this fraction of the magnitude, plus this multiple of what quantization changes. Of 54
# intact models (9 networks of 20 to 100 layers in 6 precisions), the largest difference was 0.04 of the magnitude,
# where quantization changed 0.16 of it.
_APART = 0.1
_NOISES = 3.0

_ADVICE = "Leave what computes it out with quant.op_types_to_exclude or nodes_to_exclude, or use precision fp16."


@dataclass
class _Float:
    """The model that was quantized, and random values for its inputs."""

    path: Path
    feeds: Mapping[str, _Array]

    @cached_property
    def results(self) -> Sequence[_Array] | None:
        """The outputs; None if it fails on random inputs: lengths may be coupled, or integers may be table indices."""
        try:
            return _run(open_session(self.path, "the model"), self.feeds)
        except Exception:  # onnxruntime's errors have no base class of their own
            return None


def check_sound(quantized: Path, original: Path, what: str, *, optimized: bool) -> None:
    """Raise StageError unless the model *quantized* runs and is finite where *original* is.

    *what* names it in messages. With *optimized*, it must also run with graph optimizations and output about the same
    values. Inputs are random. If *original* fails on them, or has inputs that cannot be random (text), *quantized* need
    only load.
    """
    first = open_session(quantized, what)
    try:
        reference = _Float(original, next(random_feeds(model_inputs(original), seed=0, count=1)))
    except InputError:
        if optimized:
            open_session(quantized, f"{what} with graph optimizations", optimized=True)
        return
    names = [output.name for output in first.get_outputs()]
    results = _results(first, reference, what, names)
    del first  # one model in memory at a time
    if optimized:
        with_them = f"{what} with graph optimizations"
        others = _results(open_session(quantized, with_them, optimized=True), reference, with_them, names)
        if results is not None and others is not None:
            _compare(results, others, reference, what, names)


def _results(
    session: ort.InferenceSession, reference: _Float, what: str, names: Sequence[str]
) -> Sequence[_Array] | None:
    """Return the outputs; None if the float model fails, too."""
    try:
        results = _run(session, reference.feeds)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        if reference.results is None:
            return None
        raise StageError(
            f"onnxruntime loads {what}, but does not run it: {explanation(error)}.", advice=_ADVICE
        ) from error
    if all(np.isfinite(result).all() for result in results if result.dtype.kind == "f"):
        return results
    for name, result, expected in zip(names, results, reference.results or (), strict=False):
        if result.dtype.kind == "f" and (~np.isfinite(result) & np.isfinite(expected)).any():
            raise StageError(
                f"In {what}, output {name!r} has values that are infinite or no number where float32 has none.",
                advice="Keep the operators that overflow in float32: quant.fp16_op_block_list or nodes_to_exclude.",
            )
    return results


def _compare(
    results: Sequence[_Array], others: Sequence[_Array], reference: _Float, what: str, names: Sequence[str]
) -> None:
    for index, name in enumerate(names):
        one, other = results[index], others[index]
        if one.dtype.kind != "f" or one.shape != other.shape or not one.size:
            continue
        apart = _distance(one, other)
        if apart <= _APART * _distance(one) or reference.results is None:
            continue
        expected = reference.results[index]
        noise = min(_distance(one, expected), _distance(other, expected))
        if apart > _APART * _distance(expected) + _NOISES * noise:
            share = apart / (_distance(expected) or apart)
            raise StageError(
                f"Graph optimizations of onnxruntime change output {name!r} of {what} by {share:.0%} of its magnitude,"
                " which is more than quantization explains.",
                advice=_ADVICE,
            )


def _distance(one: _Array, other: _Array | float = 0.0) -> float:
    """Return the Euclidean distance between the values that are finite in both."""
    difference = one.astype(np.float64) - np.asarray(other, np.float64)
    return float(np.linalg.norm(difference[np.isfinite(difference)]))


def _run(session: ort.InferenceSession, feeds: Mapping[str, _Array]) -> Sequence[_Array]:
    """Return the outputs for *feeds*, converted to the model's types; an empty array for a non-tensor output."""
    half = {argument.name for argument in session.get_inputs() if argument.type == "tensor(float16)"}
    cast = {name: array.astype(np.float16) if name in half else array for name, array in feeds.items()}
    return [found if isinstance(found, np.ndarray) else np.empty(0) for found in session.run(None, cast)]


# Hide from onnxruntime's quantizers what they cannot handle in a graph, and restore it afterwards.
#
# They derive names from those of tensors without checking whether such names exist, and assume that each output has a
# node that computes it.

# Suffixes appended to the name of a tensor, followed by nothing or by an underscore and more.
_DERIVED = (
    *("_scale", "_zero_point", "_quantized", "_QuantizeLinear", "_DequantizeLinear", "_convert"),
    *("_output_quantized", "_bias_reshape", "_bias_add"),
)


@dataclass(frozen=True)
class Hidden:
    """What was hidden.

    Attributes:
        renamed: the new names of renamed values, by their original names.
        outputs: all outputs of the graph, in order; ``constants`` has the initializers of those that no node computes.
    """

    renamed: Mapping[str, str]
    outputs: Sequence[ValueInfoProto]
    constants: Mapping[str, TensorProto]

    def restore(self, graph: GraphProto) -> None:
        """Undo it in *graph*, which has been quantized since."""
        rename_values(graph, {now: original for original, now in self.renamed.items()})
        made = {output.name: output for output in graph.output}
        fed = {value.name: value for value in graph.input}
        outputs = [deepcopy(made.get(value.name) or fed.get(value.name) or value) for value in self.outputs]
        replace_items(graph.output, outputs)
        graph.initializer.extend(self.constants.values())


def hide(graph: GraphProto) -> Hidden:
    """Rename values of *graph* and remove outputs that no node computes."""
    made = {name for node in graph.node for name in node.output}
    outputs = [deepcopy(value) for value in graph.output]
    names = {value.name for value in outputs}
    constants = {tensor.name: deepcopy(tensor) for tensor in graph.initializer if tensor.name in names}
    naming = Naming.of(graph)
    # A constant that is an output stays unchanged; nodes read a copy.
    inner = {name: naming.new(f"{name}_read") for name in constants}
    renamed = {name: naming.new(f"{name}_of_model") for name in _bases(graph) - inner.keys()}
    # One that is listed twice becomes one: the converter to float16 adds a cast for each, all of one name.
    replace_items(graph.output, {value.name: value for value in outputs if value.name in made}.values())
    rename_values(graph, inner | renamed)
    return Hidden(renamed, outputs, constants)


def _bases(graph: GraphProto) -> set[str]:
    """Return the values from whose names another name in *graph* appears to be derived."""
    values = {value.name for value in (*graph.input, *graph.initializer)}
    values |= {name for node in graph.node for name in node.output}
    bases = set()
    for name in (*values, *(node.name for node in graph.node)):
        for suffix in _DERIVED:
            at = name.find(suffix, 1)
            while at > 0:
                if name[:at] in values and name[at + len(suffix) :][:1] in ("", "_"):
                    bases.add(name[:at])
                at = name.find(suffix, at + 1)
    return bases


QUANTIZED_FILE = "quantized.onnx"

_MODEL_FILE = Path("float.onnx")


def run(config: QuantizeConfig, workspace: Workspace) -> JsonObject:
    """Write ``quantized.onnx``; from 100 MiB on, its weights are in a file next to it.

    Metrics: ``nodes_quantized`` and ``nodes_skipped`` count nodes that compute with floats, the latter also by
    operator; ``quantize_linear`` and ``dequantize_linear`` count added nodes; ``weights_by_type`` and
    ``activations_by_type`` count tensors; ``size_before_bytes`` and ``size_after_bytes`` include weights. Static also
    has ``qdq_insertion_time_seconds``, ``zero_additions_taken_out``, and for 8-bit activations ``equalized_tensors``
    and ``activations_kept_at_16_bits``, which protect them from outliers. ``postproc_time_seconds`` is the time to
    write the model and to run it as a check.

    Raises:
        StageError: the model is not in float32, or the result would differ from what was requested.
    """
    fields = config.quant
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "quantized", weight_only_too=fields.mode == "fp16")
    # The same model that calibrate measured; in other modes activations stay in floats, which can hold infinity.
    write_typed(source, _MODEL_FILE, finite=fields.mode == "static")
    result = quantize_model(load_model(_MODEL_FILE), read_ranges(workspace), config)
    started = time.perf_counter()
    output = workspace.outputs["model"] / QUANTIZED_FILE
    for graph in graphs_of(result.model.graph):
        sort_nodes(graph)
    carry_metadata(onnx.load(_MODEL_FILE, load_external_data=False), result.model)
    save_model(result.model, output)
    metrics = result.metrics()
    del result, graph  # while it is checked, sessions hold the weights
    # Models for QNN never run with onnxruntime's own fusions.
    what = "the model in float16" if fields.mode == "fp16" else "the quantized model"
    check_sound(output, _MODEL_FILE, what, optimized=config.target.rules != "qnn")
    return {
        "mode": fields.mode,
        **metrics,
        "postproc_time_seconds": time.perf_counter() - started,
        "size_before_bytes": _size(source),
        "size_after_bytes": _size(output),
    }


def quantize_model(model: ModelProto, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """Return the quantized form of *model*, whose tensors must have types (see :func:`write_typed`).

    It is modified. Raises as :func:`run`.
    """
    # Nodes can be excluded or overridden only by name.
    name_nodes(model.graph)
    hidden = hide(model.graph)
    quantized = _quantize(model, ranges.renamed(hidden.renamed) if ranges else None, config)
    hidden.restore(quantized.model.graph)
    return quantized


def _quantize(model: ModelProto, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    # Each mode imports its own tools: importing all of them takes 0.9 s.
    mode = config.quant.mode
    if mode == "static":
        if ranges is None:
            raise StageError(
                "Static quantization needs activation ranges.", advice="Put the calibrate stage before it."
            )
        from winml_dag.stages.quantize.static import insert_qdq

        return insert_qdq(model, ranges, config.quant, config.target)
    if mode == "fp16":
        from winml_dag.stages.quantize.half import convert_to_half

        return convert_to_half(model, config.quant)
    from winml_dag.stages.quantize.weights import quantize_dynamically, quantize_weights

    return (quantize_dynamically if mode == "dynamic" else quantize_weights)(model, config.quant)


def read_ranges(workspace: Workspace) -> Ranges | None:
    """Read the ranges. Raises StageError if they are of another model, as a file from the user may be."""
    if not workspace.has("ranges"):
        return None
    ranges = Ranges.read(workspace.input_file("ranges", ".json"))
    ranges.require_model(workspace.inputs["model"])
    return ranges


def _size(model: Path) -> int:
    return sum((model.parent / name).stat().st_size for name in inspect_model(model).files)
