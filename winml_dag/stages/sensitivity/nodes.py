"""The work of the sensitivity stage: run the float model with one node quantized, then with all but the worst."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import ModelProto

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.engine.exchange import OnProgress
from winml_dag.engine.stage import Workspace
from winml_dag.ep.session import open_session
from winml_dag.errors import StageError
from winml_dag.onnxmodel.compare import class_scores
from winml_dag.onnxmodel.feeds import model_inputs
from winml_dag.onnxmodel.files import load_model, save_model
from winml_dag.onnxmodel.graph import standard_opset
from winml_dag.recipe.precision import SIXTEEN_BITS
from winml_dag.stages.artifact_types import SENSITIVITY_FILE, SENSITIVITY_PICTURE
from winml_dag.stages.figures import Feed, OutputFigures
from winml_dag.stages.float_model import NOT_COMPUTING, refuse_unless_float, write_typed
from winml_dag.stages.quantize import NodeTypes, QuantizeConfig, QuantizeFields
from winml_dag.stages.quantize.coverage import Quantized
from winml_dag.stages.quantize.half import float_reasons
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.quantize.modes import quantize_model, read_ranges
from winml_dag.stages.quantize.outliers import keep_softmax_in_float, tame_outliers
from winml_dag.stages.quantize.selection import by_default, identity, select
from winml_dag.stages.ranges import Ranges
from winml_dag.stages.samples import Columns
from winml_dag.stages.samples.read import samples_to_validate
from winml_dag.stages.sensitivity import RELIEF, SensitivityConfig
from winml_dag.stages.sensitivity.ranking import FloatModel, NodeCost, Reference, rank, run_session, worst_output
from winml_dag.stages.sensitivity.replacement import (
    Replacement,
    from_half,
    from_integer_operators,
    from_qdq,
    with_second_ones,
)

_MODEL_FILE = Path("float.onnx")


# The gain of excluding the worst nodes: compares the otherwise quantized model with the float model.
#
# This is not the sum of their individual costs. A node that stays in float still reads the output of its quantized
# neighbours; so each number here is from a model quantized with the same fields that a user would set.

_TRIAL_FILE = Path("trial.onnx")
# Each requires quantizing and running a separate model.
_WORST = (0, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Relief:
    """``figures``: every output when the worst ``nodes`` are treated ``by`` this field of the quant section."""

    nodes: int
    by: str
    figures: tuple[OutputFigures, ...]

    @property
    def worst(self) -> OutputFigures:
        return worst_output(self.figures)


def relieve(
    model: Path,
    ranges: Ranges | None,
    config: QuantizeConfig,
    ranked: Sequence[str],
    reference: Reference,
    on_progress: OnProgress,
) -> list[Relief]:
    """Measure the whole *model* with none, two, four ... of the worst of the nodes *ranked* treated."""
    # The samples are in float32.
    config = replace(config, quant=replace(config.quant, fp16_keep_io_types=True))
    by = "node_overrides" if _has_room(config) else "nodes_to_exclude"
    most = len(ranked) - 1
    counts = sorted({min(count, most) for count in _WORST})
    reliefs = []
    for done, count in enumerate(counts):
        on_progress(done, len(counts), "trials")
        fields = _spared(config.quant, ranked[:count], by)
        try:
            quantized = quantize_model(load_model(model), ranges, replace(config, quant=fields))
            save_model(quantized.model, _TRIAL_FILE)
            session = open_session(_TRIAL_FILE, "the quantized model")
            found = [run_session(session, feed) for feed in reference.feeds]
            figures = reference.compare([[outputs[name] for name in reference.names] for outputs in found])
        except StageError as error:
            if not count:
                raise
            # Some neighbours cannot have different types; the other results are still useful.
            print(f"With the worst {count} nodes spared by quant.{by}: {error.message}")
            continue
        reliefs.append(Relief(count, by, figures))
    on_progress(len(counts), len(counts), "trials")
    return reliefs


def _has_room(config: QuantizeConfig) -> bool:
    """Return whether 16 bits are an option: for providers that mix widths, including an NPU's.

    They are the better option: next to a node in float, others are quantized differently than next to a quantized one.
    The SQNR of MiniLM in w8a8 rises from 16.5 dB to 18.5 with its worst 16 nodes in 16 bits, and falls to 9.3 with the
    same nodes in float, because residual sums are protected from their outliers only if everything around them is
    quantized.
    """
    return (
        config.quant.mode == "static"
        and config.quant.activation_type in SIXTEEN_BITS
        and bool(config.target.mixes_widths)
    )


def _spared(fields: QuantizeFields, names: Sequence[str], by: str) -> QuantizeFields:
    if not names:
        return fields
    if by == "nodes_to_exclude":
        return replace(fields, nodes_to_exclude=(*(fields.nodes_to_exclude or ()), *names))
    wide = SIXTEEN_BITS[str(fields.activation_type)]
    others = [types for types in fields.node_overrides or () if types.nodes not in names]
    return replace(fields, node_overrides=(*others, *(NodeTypes(name, activation_type=wide) for name in names)))


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
    model = onnx.load(_MODEL_FILE, load_external_data=False)
    name_nodes(model.graph)
    onnx.save(model, _MODEL_FILE)
    del model
    started = time.perf_counter()
    columns, wanted = Columns(config.quant.columns_mapping or {}), config.validate
    given = samples_to_validate(
        workspace, model_inputs(source), columns, count=wanted.samples, seed=wanted.seed, calibrated=wanted.calibrated
    )
    costs, reliefs = _rank(config, list(given.samples), workspace)
    seconds = time.perf_counter() - started
    report: JsonObject = {
        "format": 1,
        "mode": config.quant.mode,
        "weight_type": config.quant.weight_type,
        "activation_type": config.quant.activation_type,
        "data": given.samples.kind,
        "samples": given.samples.count,
        "held_out": given.held_out,
        "seed": wanted.seed,
        "nodes": [_node_json(cost) for cost in costs],
        "relief": [{"worst_nodes": relief.nodes, "by": relief.by, **_json(relief.worst)} for relief in reliefs],
    }
    folder = workspace.outputs["report"]
    (folder / SENSITIVITY_FILE).write_text(canonical_json(report) + "\n", encoding="utf-8", newline="\n")
    has_picture = importlib.util.find_spec("matplotlib") is not None
    if has_picture:
        from winml_dag.stages.sensitivity.picture import draw

        draw(costs, reliefs, RELIEF[reliefs[0].by], folder / SENSITIVITY_PICTURE)
    worst = costs[0]
    return {
        "nodes_ranked": len(costs),
        "worst_node": worst.name,
        "worst_sqnr_db": worst.worst.sqnr_db,
        "samples": given.samples.count,
        "picture": has_picture,
        "ranking_time_seconds": seconds,
    }


def _rank(
    config: SensitivityConfig, feeds: Sequence[Feed], workspace: Workspace
) -> tuple[Sequence[NodeCost], Sequence[Relief]]:
    ranges = read_ranges(workspace)
    quantize = QuantizeConfig(config.quant, config.target)
    quantized = quantize_model(load_model(_MODEL_FILE), ranges, quantize)
    base = onnx.load(_MODEL_FILE)
    names = {node.name for node in base.graph.node}
    if ranges is not None:
        # Prepared as in quantize: the same outputs in float, but different intermediate values.
        fields = by_default(base.graph, config.quant, config.target.op_types)
        reasons = select(base.graph, fields)
        if config.target.rules != "qnn":
            keep_softmax_in_float(base.graph, standard_opset(base))
        mixes = bool(config.target.mixes_widths)
        tame_outliers(base.graph, ranges, fields, lambda node: identity(node) not in reasons, mixes_widths=mixes)
    replacements = with_second_ones(base.graph, _replacements(base, quantized, config), names)
    model = FloatModel(base, quantized.model)
    scores = class_scores(model.outputs, classifies=config.validate.classifies)
    reference = Reference(model.outputs, feeds, model.run_rest(0, None, feeds), scores)
    costs = rank(model, names, replacements, reference, workspace.progress)
    del model, base, quantized
    reliefs = relieve(_MODEL_FILE, ranges, quantize, [cost.name for cost in costs], reference, workspace.progress)
    return costs, reliefs


def _replacements(base: ModelProto, quantized: Quantized, config: SensitivityConfig) -> list[Replacement]:
    graph, after = base.graph, quantized.model.graph
    if config.quant.mode == "static":
        found = from_qdq(graph, after)
    elif config.quant.mode == "fp16":
        stays = float_reasons(base, config.quant)
        found = from_half(graph, after, {node.name for node in graph.node if identity(node) in stays})
    else:
        found = from_integer_operators(graph, after)
    # Results of type conversions and constants are quantized for their readers.
    replacements = [one for one in found if graph.node[one.covers[0]].op_type not in NOT_COMPUTING]
    if not replacements:
        raise StageError("No node of the model is quantized, so there is none to rank.")
    return replacements


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
