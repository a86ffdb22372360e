"""Metrics of a finished cell, for goals to minimize and to bound.

They come from its manifest and from perf and eval. Both are untrusted, so a value of an unexpected form counts as
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from winml_dag.pipeline.documents import EvalReport, Figures, PerfReport, Stage
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.sweep.result import CellResult, Measured
from winml_dag.stages.evaluate import METRICS
from winml_dag.stages.perf.notices import EMULATED

# Replaces an infinite signal-to-noise ratio, which JSON cannot represent: no bound is higher.
EXACT_DB = 1000.0


@dataclass(frozen=True)
class Facts:
    """``values``: by measure, in its unit; ``missing``: why other measures have no value.

    ``emulated``: latencies and memory are those of an emulator, not of the device.
    """

    values: Mapping[str, float]
    missing: Mapping[str, str]
    emulated: bool = False


def facts_of(cell: CellResult, folder: Path) -> Facts:
    """Return the metrics of *cell*, which has a build, in a sweep with outputs in *folder*."""
    manifest = read_manifest(folder / cell.folder)
    done = [] if manifest is None else [stage for stage in manifest.told.stages if stage.is_done]
    perf = PerfReport.model_validate({} if cell.perf is None else cell.perf.report)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}

    def add(why: str, **found: float | None) -> None:
        values.update((name, value) for name, value in found.items() if value is not None)
        missing.update((name, why) for name, value in found.items() if value is None)

    add("the build ships no model", size=_size(done))
    figures = [found for stage in done if stage.name == "validate" and (found := stage.metrics.quality) is not None]
    add(
        "the build was not validated against its float model",
        cosine=_worst(min, (one.cosine for one in figures)),
        cosine_min=_worst(min, (one.cosine_min for one in figures)),
        sqnr_db=_worst(min, map(_ratio, figures)),
        max_abs_error=_worst(max, (one.max_abs_error for one in figures)),
    )
    add(_why(cell.perf, "perf"), latency=perf.latency_ms.p50, peak_memory=perf.memory_bytes.peak)
    accuracy, drop = _accuracy(cell.eval)
    add(_why(cell.eval, "eval"), accuracy=accuracy, accuracy_drop=drop)
    return Facts(values, missing, emulated=EMULATED in perf.notices)


def _why(measured: Measured | None, command: str) -> str:
    if measured is None:
        return f"{command} was not asked for"
    if measured.error:
        return measured.error
    if command == "eval":
        return "eval has no such figure (accuracy is the first metric of a task, its drop is against a float model)"
    return "perf has no such figure"


def _size(done: Iterable[Stage]) -> int | None:
    """Return the size of the shipped files, counting equal content once."""
    sizes = {file.digest: file.size for stage in done if stage.name == "finalize" for file in stage.files}
    return sum(sizes.values()) if sizes else None


def _ratio(figures: Figures) -> float:
    """Return the ratio; without noise or without a signal it is undefined, and the cosine shows which applies."""
    if figures.sqnr_db is not None:
        return figures.sqnr_db
    return EXACT_DB if figures.cosine == 1 else -EXACT_DB


def _worst(pick: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    """Return the worst value over all components."""
    found = [value for value in values if value is not None]
    return pick(found) if found else None


def _accuracy(evaluated: Measured | None) -> tuple[float | None, float | None]:
    """Return the main metric of the task, and its drop from the float model; for all of them larger is better."""
    if evaluated is None:
        return None, None
    report = EvalReport.model_validate(evaluated.report)
    metric = next((report.metrics[name] for name in METRICS.get(report.task, ()) if name in report.metrics), None)
    value = None if metric is None else metric.candidate.value
    reference = None if metric is None else metric.reference.value
    return value, None if value is None or reference is None else reference - value
