"""The work of the quantize stage: one mode each for integers with ranges, integers without, and float16."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import ModelProto

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.files import save_model
from winml_dag.onnxmodel.inspect import inspect_model
from winml_dag.onnxmodel.metadata import carry_metadata
from winml_dag.onnxmodel.protos import graphs_of, sort_nodes
from winml_dag.stages.float_model import refuse_unless_float, write_typed
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.quantize.census import Census
from winml_dag.stages.quantize.hidden import hide
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.quantize.soundness import check_sound
from winml_dag.stages.ranges import Ranges

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
