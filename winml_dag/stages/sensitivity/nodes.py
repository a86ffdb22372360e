"""The work of the sensitivity stage: run the float model with one node quantized, then with all but the worst."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import InputSpec, model_inputs
from winml_dag.stages.figures import OutputFigures
from winml_dag.stages.float_model import NOT_COMPUTING, refuse_unless_float, write_typed
from winml_dag.stages.quantize import QuantizeConfig
from winml_dag.stages.quantize.coverage import Quantized
from winml_dag.stages.quantize.half import float_reasons
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.quantize.modes import quantize_typed, read_ranges
from winml_dag.stages.quantize.outliers import tame_outliers
from winml_dag.stages.quantize.selection import by_default, identity, select
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.read import samples_to_validate
from winml_dag.stages.samples.samples import Samples
from winml_dag.stages.sensitivity import PICTURE_FILE, RELIEF, REPORT_FILE, SensitivityConfig
from winml_dag.stages.sensitivity.pieces import Pieces
from winml_dag.stages.sensitivity.ranking import NodeCost, Reference, Relief, rank, relieve
from winml_dag.stages.sensitivity.replacement import (
    Replacement,
    from_half,
    from_integer_operators,
    from_qdq,
    with_second_ones,
)

_MODEL_FILE = Path("float.onnx")


@dataclass(frozen=True)
class _Findings:
    samples: Samples
    held_out: bool | None
    costs: Sequence[NodeCost]
    reliefs: Sequence[Relief]


def run(config: SensitivityConfig, workspace: Workspace) -> JsonObject:
    """Write ``sensitivity.json``, and ``sensitivity.png`` if matplotlib is installed.

    Metrics: ``nodes_ranked``; ``worst_node`` and ``worst_sqnr_db``, that of the model's worst output when only that
    node is quantized; ``samples``; ``picture``, whether it was drawn; ``ranking_time_seconds``.

    Raises:
        StageError: the model is not in float32, data does not fit it, or nothing would be quantized.
    """
    source = workspace.input_file("model", ".onnx")
    refuse_unless_float(source, "ranked by sensitivity")
    write_typed(source, _MODEL_FILE, finite=config.quant.mode == "static")
    _name_nodes(_MODEL_FILE)
    started = time.perf_counter()
    found = _find(config, workspace, model_inputs(source))
    seconds = time.perf_counter() - started
    report = _report(config, found)
    folder = workspace.outputs["report"]
    (folder / REPORT_FILE).write_text(canonical_json(report) + "\n", encoding="utf-8", newline="\n")
    has_picture = importlib.util.find_spec("matplotlib") is not None
    if has_picture:
        from winml_dag.stages.sensitivity.picture import draw

        draw(found.costs, found.reliefs, RELIEF[found.reliefs[0].by], folder / PICTURE_FILE)
    worst = found.costs[0]
    return {
        "nodes_ranked": len(found.costs),
        "worst_node": worst.name,
        "worst_sqnr_db": worst.worst.sqnr_db,
        "samples": found.samples.count,
        "picture": has_picture,
        "ranking_time_seconds": seconds,
    }


def _name_nodes(model_file: Path) -> None:
    model = onnx.load(model_file, load_external_data=False)
    name_nodes(model.graph)
    onnx.save(model, model_file)


def _find(config: SensitivityConfig, workspace: Workspace, inputs: Sequence[InputSpec]) -> _Findings:
    columns, wanted = Columns(config.quant.columns_mapping or {}), config.validate
    given = samples_to_validate(
        workspace, inputs, columns, count=wanted.samples, seed=wanted.seed, calibrated=wanted.calibrated
    )
    samples = given.samples
    feeds = list(samples)
    ranges = read_ranges(workspace)
    quantize = QuantizeConfig(config.quant, config.target)
    quantized = quantize_typed(_MODEL_FILE, ranges, quantize)
    base = onnx.load(_MODEL_FILE)
    names = {node.name for node in base.graph.node}
    if ranges is not None:
        # Prepared as in quantize: the same outputs in float, but different intermediate values.
        fields = by_default(base.graph, config.quant, config.target.op_types)
        reasons = select(base.graph, fields)
        mixes = bool(config.target.mixes_widths)
        tame_outliers(base.graph, ranges, fields, lambda node: identity(node) not in reasons, mixes_widths=mixes)
    replacements = with_second_ones(base.graph, _replacements(base.graph, quantized, config), names)
    pieces = Pieces(base, [one.covers for one in replacements], quantized.model, feeds[0])
    outputs = [list(pieces.finish(0, feed).values()) for feed in feeds]
    reference = Reference(
        pieces.outputs, feeds, outputs, class_scores(pieces.outputs, classifies=config.validate.classifies)
    )
    costs = rank(base.graph, names, replacements, pieces, reference, workspace.progress)
    del pieces, quantized
    reliefs = relieve(_MODEL_FILE, ranges, quantize, [cost.name for cost in costs], reference, workspace.progress)
    return _Findings(samples, given.held_out, costs, reliefs)


def _replacements(graph: GraphProto, quantized: Quantized, config: SensitivityConfig) -> list[Replacement]:
    after = quantized.model.graph
    if config.quant.mode == "static":
        found = from_qdq(graph, after)
    elif config.quant.mode == "fp16":
        stays = float_reasons(graph, config.quant)
        found = from_half(graph, after, {node.name for node in graph.node if identity(node) in stays})
    else:
        found = from_integer_operators(graph, after)
    # Results of type conversions and constants are quantized for their readers.
    replacements = [one for one in found if graph.node[one.covers[0]].op_type not in NOT_COMPUTING]
    if not replacements:
        raise StageError("No node of the model is quantized, so there is none to rank.")
    return replacements


def _report(config: SensitivityConfig, found: _Findings) -> JsonObject:
    fields = config.quant
    return {
        "format": 1,
        "mode": fields.mode,
        "weight_type": fields.weight_type,
        "activation_type": fields.activation_type,
        "data": found.samples.kind,
        "samples": found.samples.count,
        "held_out": found.held_out,
        "seed": config.validate.seed,
        "nodes": [_node_json(cost) for cost in found.costs],
        "relief": [{"worst_nodes": relief.nodes, "by": relief.by, **_json(relief.worst)} for relief in found.reliefs],
    }


def _node_json(cost: NodeCost) -> JsonValue:
    outputs: JsonObject = {figures.read.name: figures.to_json() for figures in cost.figures}
    return {
        "node": cost.name,
        "op_type": cost.op_type,
        "includes": list(cost.includes),
        **_json(cost.worst),
        "outputs": outputs,
    }


def _json(worst: OutputFigures) -> JsonObject:
    return {
        "output": worst.read.name,
        "cosine": worst.cosine,
        "sqnr_db": worst.sqnr_db,
        "max_abs_error": worst.max_abs_error,
    }
