"""How long one inference takes: the loop that measures, and what is told of its figures."""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.engine.progress import Tell, tell_nobody
from winml_dag.stages.perf import PerfFields
from winml_dag.stages.perf.load import waited_ns, waited_share

# The latencies of a measurement as a picture: how often which, and in which order they came.
#
# The same figures give the same bytes with one version of matplotlib: its own fonts, no user's style, no date.

# Before the import: what matplotlib finds out about fonts stays in the stage's own folder.
os.environ["MPLCONFIGDIR"] = str(Path("matplotlib").absolute())

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from winml_dag.engine.stage import Workspace
from winml_dag.stages.perf import PICTURE_FILE, HistogramConfig
from winml_dag.stages.perf.measurement import EMULATED
from winml_dag.store.quantities import counted

_BAR, _DOT = "#56b4e9", "#0072b2"
_LINES = {50: "#009e73", 90: "#e69f00", 99: "#d55e00"}
_MOST_BINS = 60
# So much beyond p99 is shown: one inference that took ten times as long would press all others into one bar.
_ROOM = 0.5


def run(config: HistogramConfig, workspace: Workspace) -> JsonObject:
    """Draw what ``report`` has as ``histogram.png``."""
    report = json.loads(workspace.input_file("report", ".json").read_text(encoding="utf-8"))
    draw(report, config.title, workspace.outputs["picture"] / PICTURE_FILE)
    return {}


def draw(report: Any, title: str, path: Path) -> None:
    """Write a PNG of the latencies in *report*, in milliseconds."""
    each = [value / NS_PER_MS for value in report["latencies_ns"]]
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=(10, 6.4), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        counts, course = figure.subplots(2, 1, height_ratios=(3, 2))
        figure.suptitle(f"{title}\n{_how(report)}", fontsize=11, x=0.01, ha="left")
        if EMULATED in report["notices"]:
            figure.supxlabel(EMULATED, fontsize=9, color=_LINES[99])
        _draw_counts(counts, each, report["latency_ms"])
        _draw_course(course, each, report["latency_ms"])
        for text in figure.findobj(Text):
            font = FontProperties(fname=str(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")))
            font.set_size(text.get_fontsize())
            text.set_fontproperties(font)
        figure.savefig(path, format="png", metadata={"Software": None})


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
    # Above the axes, where no bar is.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9)


def _draw_course(axes: Axes, each: Sequence[float], figures: Any) -> None:
    axes.plot(range(1, len(each) + 1), each, linestyle="none", marker=".", markersize=4, color=_DOT)
    for percent in PERCENTILES:
        axes.axhline(figures[f"p{percent}"], color=_LINES[percent], linewidth=1)
    axes.set_xlim(0, len(each) + 1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("inference, in the order in which they ran")
    axes.set_ylabel("latency, ms")


PERCENTILES = (50, 90, 99)
PERCENTILE_DEFINITION = "nearest rank: the smallest measured value that at least p % of all do not exceed"

_NS = 1_000_000_000
NS_PER_MS = 1_000_000
# Telling costs about as much as running the smallest models, so it is done now and then.
_NS_BETWEEN_TELLING = _NS // 2
_CLOCK_READINGS = 1000


@dataclass(frozen=True)
class Latencies:
    """Nanoseconds of each inference in the order in which they ran, and of all together, what lies between included.

    ``waited_share``: what part of all that a thread waited for a processor; None where the system does not tell.
    """

    each: tuple[int, ...]
    together: int
    waited_share: float | None = None


def measure(infer: Callable[[int], object], fields: PerfFields, progress: Tell = tell_nobody) -> Latencies:
    """Call *infer* with 0, 1, 2 ... to warm up, then as often or as long as *fields* say, with the clock at hand."""
    for index in range(fields.warmup):
        progress(index, fields.warmup, "warm-up inferences")
        infer(index)
    return _measure(infer, fields, progress)


def _measure(infer: Callable[[int], object], fields: PerfFields, progress: Tell) -> Latencies:
    clock = time.perf_counter_ns
    limit = math.inf if fields.duration is None else fields.duration * _NS
    most = math.inf if fields.iterations is None else fields.iterations
    each: list[int] = []
    # Python's own collector would stop one inference or another for something that is none of the model's.
    was_enabled = gc.isenabled()
    gc.disable()
    waited = waited_ns()
    try:
        started = told = clock()
        now = started
        while len(each) < most and now - started < limit:
            if now - told >= _NS_BETWEEN_TELLING:
                progress(len(each), fields.iterations, "inferences")
                told = now
            began = clock()
            infer(len(each))
            now = clock()
            each.append(now - began)
    finally:
        if was_enabled:
            gc.enable()
    share = waited_share(waited, waited_ns(), now - started)
    progress(len(each), len(each), "inferences")
    return Latencies(tuple(each), now - started, share)


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Of values in ascending order, one that was measured: see PERCENTILE_DEFINITION."""
    return ordered[math.ceil(percent * len(ordered) / 100) - 1]


def latency_json(latencies: Latencies) -> JsonObject:
    """What is told of *latencies*, in milliseconds. ``std`` is of these inferences, and no estimate of others'."""
    ordered = sorted(latencies.each)
    mean = sum(ordered) / len(ordered)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in ordered) / len(ordered))
    named = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    values = {"mean": mean, **named, "min": ordered[0], "max": ordered[-1], "std": deviation}
    return {
        "inferences": len(ordered),
        **{name: value / NS_PER_MS for name, value in values.items()},
        "percentiles": PERCENTILE_DEFINITION,
    }


def throughput_json(latencies: Latencies, batch_size: int) -> JsonObject:
    """One inference after the other; the time between them counts too."""
    per_second = len(latencies.each) * _NS / max(latencies.together, 1)
    return {"inferences_per_second": per_second, "samples_per_second": per_second * batch_size}


def clock_resolution_ns() -> int:
    """The smallest step that the clock was seen to make."""
    clock = time.perf_counter_ns
    readings = [clock() for _ in range(_CLOCK_READINGS)]
    steps = [later - earlier for earlier, later in pairwise(readings) if later > earlier]
    return min(steps, default=_NS)
