"""Draw the ranking: the worst nodes as bars, and the gain of excluding them as a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from winml_dag.stages.drawing import png_figure  # isort: split

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from winml_dag.stages.sensitivity.nodes import Relief
from winml_dag.stages.sensitivity.ranking import NodeCost

_MOST_BARS = 25
_LONGEST_NAME = 68
# Noise beyond this ratio is invisible; an output without noise has no ratio.
_CLEAN_DB = 100.0
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def draw(costs: Sequence[NodeCost], reliefs: Sequence[Relief], how: str, path: Path) -> None:
    """Write a PNG of the worst of *costs*, and of *reliefs*; *how* describes the treatment of the nodes."""
    worst = costs[:_MOST_BARS]
    height = 1.4 + 0.24 * len(worst)
    with png_figure(path, 11, height + 2.8) as figure:
        bars, curve = figure.subplots(2, 1, height_ratios=(height, 2.4))
        _draw_bars(bars, worst, len(costs))
        _draw_curve(curve, reliefs, how)


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
    ratios = [_CLEAN_DB if relief.worst.sqnr_db is None else relief.worst.sqnr_db for relief in reliefs]
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


def _shortened(name: str) -> str:
    """Shorten a name in the middle: the end identifies the node, the beginning its location."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME // 3]}…{name[-(_LONGEST_NAME - _LONGEST_NAME // 3 - 1) :]}"
