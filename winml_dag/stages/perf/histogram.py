"""Draw the latencies of a measurement: their distribution, and their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winml_dag.stages.drawing import png_figure  # isort: split

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.stages.perf import PICTURE_FILE, HistogramConfig
from winml_dag.stages.perf.latency import EMULATED, NS_PER_MS, PERCENTILES
from winml_dag.store.quantities import counted

_BAR, _DOT = "#56b4e9", "#0072b2"
_LINES = {50: "#009e73", 90: "#e69f00", 99: "#d55e00"}
_MOST_BINS = 60
# The range shown beyond p99: one inference that took ten times as long would compress all others into one bar.
_ROOM = 0.5


def run(config: HistogramConfig, workspace: Workspace) -> JsonObject:
    """Draw ``report`` as ``histogram.png``."""
    report = json.loads(workspace.input_file("report", ".json").read_text(encoding="utf-8"))
    draw(report, config.title, workspace.outputs["picture"] / PICTURE_FILE)
    return {}


def draw(report: Any, title: str, path: Path) -> None:
    """Write a PNG of the latencies in *report*, in milliseconds."""
    each = [value / NS_PER_MS for value in report["latencies_ns"]]
    with png_figure(path, 10, 6.4) as figure:
        counts, course = figure.subplots(2, 1, height_ratios=(3, 2))
        figure.suptitle(f"{title}\n{_how(report)}", fontsize=11, x=0.01, ha="left")
        if EMULATED in report["notices"]:
            figure.supxlabel(EMULATED, fontsize=9, color=_LINES[99])
        _draw_counts(counts, each, report["latency_ms"])
        _draw_course(course, each, report["latency_ms"])


def _how(report: Any) -> str:
    host = report["host"]
    warmup = f"after {report['warmup']} to warm up" if report["warmup"] else "without warm-up"
    counts = f"{counted(report['latency_ms']['inferences'], 'inference')} {warmup}"
    batch = f", each of {report['batch_size']} samples" if report["batch_size"] > 1 else ""
    return f"{counts}{batch}; {host['processor']}, {host['usable cores']} of {host['logical cores']} cores"


def _draw_counts(axes: Axes, each: Sequence[float], figures: Any) -> None:
    least, most = min(each), max(each)
    end = min(most, figures["p99"] + _ROOM * (figures["p99"] - least))
    shown = [value for value in each if value <= end]
    bins = min(_MOST_BINS, max(10, len(each) // 4))
    axes.hist(
        shown, bins=bins, range=(least, end if end > least else least * 1.01 or 1.0), color=_BAR, edgecolor="white"
    )
    for percent in PERCENTILES:
        value = figures[f"p{percent}"]
        axes.axvline(value, color=_LINES[percent], linewidth=2, label=f"p{percent} {value:.4g} ms")
    axes.axvline(figures["mean"], color="black", linewidth=1, linestyle=":", label=f"mean {figures['mean']:.4g} ms")
    if beyond := len(each) - len(shown):
        axes.text(
            0.99, 0.9, f"{beyond} beyond, up to {most:.4g} ms →", transform=axes.transAxes, ha="right", fontsize=9
        )
    axes.set_xlabel("latency of one inference, ms")
    axes.set_ylabel("inferences")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    # Above the axes, where there are no bars.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9)


def _draw_course(axes: Axes, each: Sequence[float], figures: Any) -> None:
    axes.plot(range(1, len(each) + 1), each, linestyle="none", marker=".", markersize=4, color=_DOT)
    for percent in PERCENTILES:
        axes.axhline(figures[f"p{percent}"], color=_LINES[percent], linewidth=1)
    axes.set_xlim(0, len(each) + 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("inference, in the order in which they ran")
    axes.set_ylabel("latency, ms")
