"""The work of the quantize stage: modes for integers with ranges, integers without ranges, and float16."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.ep.session import open_session
from winml_dag.errors import InputError, StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import model_inputs, random_feeds
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.onnxmodel.protos import graphs_of, sort_nodes
from winml_dag.stages.float_model import refuse_unless_float, write_typed
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.quantize.coverage import Coverage
from winml_dag.stages.quantize.half import hide
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
            raise StageError(
                f"Graph optimizations of onnxruntime change output {name!r} of {what} by"
                f" {apart / _distance(expected):.0%} of its magnitude, which is more than quantization explains.",
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


QUANTIZED_FILE = "quantized.onnx"
MODES = ("static", "dynamic", "rtn", "fp16")

_MODEL_FILE = Path("float.onnx")


@dataclass(frozen=True)
class Quantized:
    """A quantized model, the coverage of its nodes, and metrics of the mode."""

    model: ModelProto
    coverage: Coverage
    weight_type: str
    activation_type: str
    more_metrics: JsonObject = field(default_factory=dict)


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
    if fields.mode not in MODES:
        raise StageError(f"Unknown quantization mode {fields.mode!r}.", advice=f"Known are: {', '.join(MODES)}.")
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "quantized", weight_only_too=fields.mode == "fp16")
    # The same model that calibrate measured; in other modes activations stay in floats, which can hold infinity.
    write_typed(source, _MODEL_FILE, finite=fields.mode == "static")
    result = quantize_typed(_MODEL_FILE, read_ranges(workspace), config)
    started = time.perf_counter()
    output = workspace.outputs["model"] / QUANTIZED_FILE
    for graph in graphs_of(result.model.graph):
        sort_nodes(graph)
    carry_metadata(onnx.load(_MODEL_FILE, load_external_data=False), result.model)
    save_model(result.model, output)
    # Models for QNN never run with onnxruntime's own fusions.
    check_sound(output, _MODEL_FILE, _called(fields.mode), optimized=config.target.rules != "qnn")
    seconds = time.perf_counter() - started
    return {
        "mode": fields.mode,
        "weight_type": result.weight_type,
        "activation_type": result.activation_type,
        **result.coverage.to_json(),
        **result.more_metrics,
        "postproc_time_seconds": seconds,
        "size_before_bytes": _size(source),
        "size_after_bytes": _size(output),
    }


def quantize_typed(source: Path, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """Return the quantized form of the model *source*, whose tensors must have types (see :func:`write_typed`).

    Raises:
        StageError: as :func:`run`.
    """
    return quantize_model(load_model(source), onnx.load(source, load_external_data=False), ranges, config)


def quantize_model(model: ModelProto, before: ModelProto, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """Return the quantized form of *model*; *before* is the same model, possibly without its external weights."""
    graphs = (model.graph, before.graph)
    for graph in graphs:
        # Nodes can be excluded or overridden only by name.
        name_nodes(graph)
    hidden = hide(graphs)
    quantized = _quantize(model, before, ranges.renamed(hidden.renamed) if ranges else None, config)
    hidden.restore(quantized.model.graph)
    return quantized


def _quantize(model: ModelProto, before: ModelProto, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """Quantize *model* in place; *before* is the same model, possibly without its external weights."""
    fields = config.quant
    # Each mode imports its own tools: importing all of them takes 0.9 s.
    if fields.mode == "static":
        if ranges is None:
            raise StageError(
                "Static quantization needs activation ranges.", advice="Put the calibrate stage before it."
            )
        from winml_dag.stages.quantize.selection import by_default
        from winml_dag.stages.quantize.static import insert_qdq

        fields = by_default(before.graph, fields, config.target.op_types)
        insertion = insert_qdq(model, before, ranges, fields, config.target)
        more: dict[str, JsonValue] = {
            "qdq_insertion_time_seconds": insertion.seconds,
            "equalized_tensors": insertion.tamed.equalized_tensors,
            "activations_kept_at_16_bits": insertion.tamed.activations_kept_at_16_bits,
            "zero_additions_taken_out": insertion.tamed.zero_additions,
        }
        return Quantized(
            insertion.model, insertion.coverage, str(fields.weight_type), str(fields.activation_type), more
        )
    if fields.mode == "fp16":
        from winml_dag.stages.quantize.half import convert_to_half

        half, coverage = convert_to_half(model, before, fields)
        return Quantized(half, coverage, "float16", "float16")
    from winml_dag.stages.quantize.weights import quantize_dynamically, quantize_weights

    if fields.mode == "dynamic":
        quantized, coverage = quantize_dynamically(model, before, fields)
        return Quantized(quantized, coverage, str(fields.weight_type), "uint8")
    quantized, coverage = quantize_weights(model, before, fields)
    return Quantized(quantized, coverage, ", ".join(coverage.weights), "float32")


def read_ranges(workspace: Workspace) -> Ranges | None:
    """Read the ranges. Raises StageError if they are of another model, as a file from the user may be."""
    if not workspace.has("ranges"):
        return None
    ranges = Ranges.read(workspace.input_file("ranges", ".json"))
    ranges.require_model(workspace.inputs["model"])
    return ranges


def _called(mode: str) -> str:
    return "the model in float16" if mode == "fp16" else "the quantized model"


def _size(model: Path) -> int:
    return sum((model.parent / name).stat().st_size for name in inspect_model(model).files)
