"""The work of the quantize stage: one mode each for integers with ranges, integers without, and float16."""

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
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.onnxmodel.protos import graphs_of, sort_nodes
from winml_dag.stages.float_model import refuse_unless_float, write_typed
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.quantize.census import Census
from winml_dag.stages.quantize.half import hide
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.ranges import Ranges

# Runs a quantized model before it counts: without graph optimizations and with them, it has to give the same values.
#
# onnxruntime fuses Q, DQ and what is between them into integer kernels. A scale of the wrong shape fails in the one
# form and is never looked at in the other, and a fusion may compute something else. Either is wrong for somebody.

_Array = NDArray[np.generic]

# Results of the two forms may differ by this part of their magnitude, and this many times what quantization changes.
# Of 54 sound models (9 networks of 20 to 100 layers in 6 precisions), those that differed most did so by 0.04 of their
# magnitude, where quantization changed 0.16 of it.
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
        """None where it does not run on them: lengths may depend on each other, or integers be places in a table."""
        try:
            return _run(open_session(self.path, "the model"), self.feeds)
        except Exception:  # onnxruntime's errors have no base class of their own
            return None


def check_sound(quantized: Path, original: Path, what: str, *, optimized: bool) -> None:
    """Raise StageError unless the model *quantized* (in sentences: *what*) runs and is finite where *original* is;
    *optimized*: with graph optimizations too, and about the same values.

    Inputs are random. Where *original* does not run on such, or there are none (of texts), it need only load.
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
    """None where the float model does not run either."""
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
    """Between what of both is finite: the root of the sum of squares."""
    difference = one.astype(np.float64) - np.asarray(other, np.float64)
    return float(np.linalg.norm(difference[np.isfinite(difference)]))


def _run(session: ort.InferenceSession, feeds: Mapping[str, _Array]) -> Sequence[_Array]:
    """The outputs for *feeds* in the types that the model takes; an empty array in place of what is no tensor."""
    half = {argument.name for argument in session.get_inputs() if argument.type == "tensor(float16)"}
    cast = {name: array.astype(np.float16) if name in half else array for name, array in feeds.items()}
    return [found if isinstance(found, np.ndarray) else np.empty(0) for found in session.run(None, cast)]


QUANTIZED_FILE = "quantized.onnx"
MODES = ("static", "dynamic", "rtn", "fp16")

_MODEL_FILE = Path("float.onnx")


@dataclass(frozen=True)
class Quantized:
    """A quantized model, what became of the nodes of the float one, and metrics of the mode's own."""

    model: ModelProto
    census: Census
    weight_type: str
    activation_type: str
    more_metrics: JsonObject = field(default_factory=dict)


def run(config: QuantizeConfig, workspace: Workspace) -> JsonObject:
    """Write ``quantized.onnx``, its weights beside it from 100 MiB on.

    Metrics: ``nodes_quantized`` and ``nodes_skipped``, nodes that compute with floats, the latter also by operator;
    ``quantize_linear`` and ``dequantize_linear``, nodes that were added; ``weights_by_type``, ``activations_by_type``,
    tensors; ``size_before_bytes``, ``size_after_bytes``, with weights; for static ``qdq_insertion_time_seconds``,
    ``zero_additions_taken_out``, and of 8-bit activations ``equalized_tensors`` and ``activations_kept_at_16_bits``,
    to spare them outliers;
    ``postproc_time_seconds``, of writing the model and running it to see that it can be.

    Raises:
        StageError: for a model that is not in float32, or when something else than what was asked for would come out.
    """
    fields = config.quant
    if fields.mode not in MODES:
        raise StageError(f"Unknown quantization mode {fields.mode!r}.", advice=f"Known are: {', '.join(MODES)}.")
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "quantized", weight_only_too=fields.mode == "fp16")
    # Of the very model that calibrate measured; in other modes activations stay in floats, which hold infinity.
    write_typed(source, _MODEL_FILE, finite=fields.mode == "static")
    result = quantize_typed(_MODEL_FILE, read_ranges(workspace), config)
    started = time.perf_counter()
    output = workspace.outputs["model"] / QUANTIZED_FILE
    for graph in graphs_of(result.model.graph):
        sort_nodes(graph)
    carry_metadata(onnx.load(_MODEL_FILE, load_external_data=False), result.model)
    save_model(result.model, output)
    # What is for QNN never meets onnxruntime's own fusions.
    check_sound(output, _MODEL_FILE, _called(fields.mode), optimized=config.target.rules != "qnn")
    seconds = time.perf_counter() - started
    return {
        "mode": fields.mode,
        "weight_type": result.weight_type,
        "activation_type": result.activation_type,
        **result.census.to_json(),
        **result.more_metrics,
        "postproc_time_seconds": seconds,
        "size_before_bytes": _size(source),
        "size_after_bytes": _size(output),
    }


def quantize_typed(source: Path, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """The quantized form of the model *source*, whose tensors must have types (see :func:`write_typed`).

    Raises:
        StageError: as :func:`run`.
    """
    model, before = onnx.load(source), onnx.load(source, load_external_data=False)
    graphs = (model.graph, before.graph)
    for graph in graphs:
        # A node can only be left out, or be told of, by its name.
        name_nodes(graph)
    hidden = hide(graphs)
    quantized = _quantize(model, before, ranges.renamed(hidden.renamed) if ranges else None, config)
    hidden.restore(quantized.model.graph)
    return quantized


def _quantize(model: ModelProto, before: ModelProto, ranges: Ranges | None, config: QuantizeConfig) -> Quantized:
    """*before* is *model*, which is changed on the way; it may be without its external weights."""
    fields = config.quant
    # Each mode imports its own tools: those of all together take 0.9 s.
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
        return Quantized(insertion.model, insertion.census, str(fields.weight_type), str(fields.activation_type), more)
    if fields.mode == "fp16":
        from winml_dag.stages.quantize.half import convert_to_half

        half, census = convert_to_half(model, before, fields)
        return Quantized(half, census, "float16", "float16")
    from winml_dag.stages.quantize.weights import quantize_dynamically, quantize_weights

    if fields.mode == "dynamic":
        quantized, census = quantize_dynamically(model, before, fields)
        return Quantized(quantized, census, str(fields.weight_type), "uint8")
    quantized, census = quantize_weights(model, before, fields)
    return Quantized(quantized, census, ", ".join(census.weights), "float32")


def read_ranges(workspace: Workspace) -> Ranges | None:
    """Raises StageError for ranges of another model, which a file of the user's may have."""
    if not workspace.has("ranges"):
        return None
    ranges = Ranges.read(workspace.input_file("ranges", ".json"))
    ranges.require_model(workspace.inputs["model"])
    return ranges


def _called(mode: str) -> str:
    return "the model in float16" if mode == "fp16" else "the quantized model"


def _size(model: Path) -> int:
    return sum((model.parent / name).stat().st_size for name in inspect_model(model).files)
