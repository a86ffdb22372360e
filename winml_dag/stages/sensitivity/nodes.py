"""The work of the sensitivity stage: the float model with one node quantized at a time, then with all but the worst."""

from __future__ import annotations

import importlib.util
import math
import os
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
from winml_dag.stages.quantize.half import float_reasons
from winml_dag.stages.quantize.mixed import name_nodes
from winml_dag.stages.quantize.modes import Quantized, quantize_typed, read_ranges
from winml_dag.stages.quantize.outliers import tame_outliers
from winml_dag.stages.quantize.selection import by_default, identity
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

# The ranking as a picture: the worst nodes as bars, and what it gains to spare them as a curve.
#
# The same numbers give the same bytes with one version of matplotlib: its own fonts, no user's style, no date.

# Before the import: what matplotlib finds out about fonts stays in the stage's own folder.
os.environ["MPLCONFIGDIR"] = str(Path("matplotlib").absolute())

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.ticker import NullFormatter, NullLocator

_MOST_BARS = 25
_LONGEST_NAME = 68
# Beyond this ratio nothing is to be seen of the noise; an output without any has no ratio.
_CLEAN_DB = 100.0
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw(costs: Sequence[NodeCost], reliefs: Sequence[Relief], how: str, path: Path) -> None:
    """Write a PNG of the worst of *costs*, and of *reliefs*, in which nodes are spared as *how* says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        worst = costs[:_MOST_BARS]
        height = 1.4 + 0.24 * len(worst)
        figure = Figure(figsize=(11, height + 2.8), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        bars, curve = figure.subplots(2, 1, height_ratios=(height, 2.4))
        _draw_bars(bars, worst, len(costs))
        _draw_curve(curve, reliefs, how)
        for text in figure.findobj(Text):
            font = FontProperties(fname=str(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")))
            font.set_size(text.get_fontsize())
            text.set_fontproperties(font)
        figure.savefig(path, format="png", metadata={"Software": None})


def _draw_bars(axes: Axes, costs: Sequence[NodeCost], of: int) -> None:
    errors = [_percent(cost.worst.sqnr_db) for cost in costs]
    op_types = list(dict.fromkeys(cost.op_type for cost in costs))
    rows = range(len(costs), 0, -1)
    for index, op_type in enumerate(op_types):
        mine = [place for place, cost in enumerate(costs) if cost.op_type == op_type]
        axes.barh(
            [rows[place] for place in mine],
            [errors[place] for place in mine],
            color=_COLOURS[index % len(_COLOURS)],
            alpha=1.0 if index < len(_COLOURS) else 0.5,
            label=op_type,
        )
    for row, error, cost in zip(rows, errors, costs, strict=True):
        ratio = "exact" if cost.worst.sqnr_db is None else f"{cost.worst.sqnr_db:.1f} dB"
        axes.text(error, row, f" {ratio}", va="center", fontsize=8)
    axes.set_yticks(list(rows), [_shortened(cost.name) for cost in costs], fontsize=8)
    axes.set_ylim(0.3, len(costs) + 0.7)
    axes.set_xlim(0, 1.12 * max(errors, default=1) or 1)
    axes.set_xlabel("error of the model's worst output when this node alone is quantized, % of its root mean square")
    axes.set_title(f"What quantizing one node costs: the worst {len(costs)} of {of}", loc="left")
    axes.legend(loc="lower right", fontsize=8)


def _draw_curve(axes: Axes, reliefs: Sequence[Relief], how: str) -> None:
    places = range(len(reliefs))
    ratios = [_sqnr(relief) for relief in reliefs]
    axes.plot(places, ratios, marker="o", color=_COLOURS[0])
    for place, ratio in zip(places, ratios, strict=True):
        axes.annotate(
            f"{ratio:.1f}", (place, ratio), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8
        )
    axes.set_xticks(list(places), [str(relief.nodes) for relief in reliefs])
    axes.margins(y=0.3)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"how many of the worst nodes are left {how}")
    axes.set_ylabel("SQNR, dB")
    axes.set_title("The whole model, all other nodes quantized", loc="left")


def _percent(sqnr_db: float | None) -> float:
    return 100 * math.pow(10, -(_CLEAN_DB if sqnr_db is None else sqnr_db) / 20)


def _sqnr(relief: Relief) -> float:
    ratio = relief.worst.sqnr_db
    return _CLEAN_DB if ratio is None else ratio


def _shortened(name: str) -> str:
    """The end tells one node from another, the beginning where it is."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME // 3]}…{name[-(_LONGEST_NAME - _LONGEST_NAME // 3 - 1) :]}"


_MODEL_FILE = Path("float.onnx")


@dataclass(frozen=True)
class _Findings:
    samples: Samples
    held_out: bool | None
    costs: Sequence[NodeCost]
    reliefs: Sequence[Relief]


def run(config: SensitivityConfig, workspace: Workspace) -> JsonObject:
    """Write ``sensitivity.json``, and ``sensitivity.png`` where matplotlib is installed.

    Metrics: ``nodes_ranked``; ``worst_node`` and ``worst_sqnr_db``, of the whole model's worst output when only that
    node is quantized; ``samples``; ``picture``, whether there is one; ``ranking_time_seconds``.

    Raises:
        StageError: for a model that is not in float32, data that does not fit it, or when nothing would be quantized.
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
        # As quantize did: of the same values, in float, but other ones in between.
        fields = by_default(base.graph, config.quant, config.target.op_types)
        tame_outliers((base.graph,), ranges, fields, mixes_widths=bool(config.target.mixes_widths))
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
    # What conversions between types and constants give is quantized for who reads it.
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
