"""What is known of a finished cell as numbers: what goals minimize, and put bounds on.

From its manifest and what perf and eval told. Both may have been written by anybody, so what is not of the expected
form counts as not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.manifest import read_manifest
from winml_dag.pipeline.sweep.result import CellResult, Measured
from winml_dag.stages.evaluate import METRICS
from winml_dag.stages.perf.notices import EMULATED

# In place of the ratio to no noise at all, for which JSON has no number: no bound asks for more.
EXACT_DB = 1000.0


@dataclass(frozen=True)
class Facts:
    """``values``: by measure, in its unit; ``missing``: by measure, why it is not among them. ``emulated``: latencies
    and memory are those of an emulator, and say nothing of the device.
    """

    values: Mapping[str, float]
    missing: Mapping[str, str]
    emulated: bool = False


def facts_of(cell: CellResult, folder: Path) -> Facts:
    """What is known of *cell*, which is there, in a sweep whose outputs are in *folder*."""
    manifest = read_manifest(folder / cell.folder)
    stages = [] if manifest is None else _completed(manifest.value)
    values: dict[str, float] = {}
    missing: dict[str, str] = {}
    _add(values, missing, ("size",), _size(stages), "the build ships no model")
    quality = _quality(stages)
    names = ("cosine", "cosine_min", "sqnr_db", "max_abs_error")
    _add(values, missing, names, quality, "the build was not validated against its float model")
    _add(values, missing, ("latency", "peak_memory"), _speed(cell.perf), _why(cell.perf, "perf"))
    _add(values, missing, ("accuracy", "accuracy_drop"), _accuracy(cell.eval), _why(cell.eval, "eval"))
    notices = () if cell.perf is None else _items(cell.perf.report.get("notices"))
    return Facts(values, missing, emulated=EMULATED in notices)


def _add(
    values: dict[str, float],
    missing: dict[str, str],
    names: tuple[str, ...],
    found: Mapping[str, object],
    why: str,
) -> None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            values[name] = value
        else:
            missing[name] = why


def _why(measured: Measured | None, command: str) -> str:
    if measured is None:
        return f"{command} was not asked for"
    if measured.error:
        return measured.error
    if command == "eval":
        return "eval has no such figure (accuracy is the first metric of a task, its drop is against a float model)"
    return "perf has no such figure"


def _completed(manifest: JsonObject) -> list[Mapping[str, Any]]:
    return [stage for stage in _items(manifest.get("stages")) if _at(stage, "status") == "completed"]


def _size(stages: list[Mapping[str, Any]]) -> Mapping[str, object]:
    """Of what is shipped, each content once."""
    files = {
        str(_at(file, "digest")): _at(file, "size")
        for stage in stages
        if _at(stage, "name") == "finalize"
        for output in _values(_at(stage, "outputs"))
        for file in _items(_at(output, "files"))
    }
    sizes = [size for size in files.values() if isinstance(size, int)]
    return {"size": sum(sizes)} if sizes else {}


def _quality(stages: list[Mapping[str, Any]]) -> Mapping[str, object]:
    """The worst of all components, as validate found it."""
    found = [
        quality
        for stage in stages
        if _at(stage, "name") == "validate" and isinstance(quality := _at(stage, "metrics", "quality"), Mapping)
    ]
    if not found:
        return {}
    worst: dict[str, object] = {
        "cosine": _least(quality.get("cosine") for quality in found),
        "cosine_min": _least(quality.get("cosine_min") for quality in found),
        "sqnr_db": _least(_ratio(quality) for quality in found),
    }
    errors = [error for quality in found if isinstance(error := quality.get("max_abs_error"), int | float)]
    return {**worst, "max_abs_error": max(errors, default=None)}


def _ratio(quality: Mapping[str, Any]) -> object:
    """Without noise there is no ratio, and without a signal neither; the cosine tells which."""
    ratio = quality.get("sqnr_db")
    return (EXACT_DB if quality.get("cosine") == 1 else -EXACT_DB) if ratio is None else ratio


def _least(values: Iterator[object]) -> object:
    return min((value for value in values if isinstance(value, int | float)), default=None)


def _speed(perf: Measured | None) -> Mapping[str, object]:
    if perf is None:
        return {}
    return {"latency": _at(perf.report, "latency_ms", "p50"), "peak_memory": _at(perf.report, "memory_bytes", "peak")}


def _accuracy(evaluated: Measured | None) -> Mapping[str, object]:
    """The most telling metric of the task, and how much less that is than the float model's; all are better when they
    are more.
    """
    if evaluated is None:
        return {}
    metrics = _at(evaluated.report, "metrics")
    task = str(_at(evaluated.report, "task"))
    name = next((name for name in METRICS.get(task, ()) if isinstance(metrics, Mapping) and name in metrics), "")
    value, reference = _at(metrics, name, "candidate", "value"), _at(metrics, name, "reference", "value")
    if isinstance(value, int | float) and isinstance(reference, int | float):
        return {"accuracy": value, "accuracy_drop": reference - value}
    return {"accuracy": value}


def _at(value: object, *names: str) -> Any:
    """What is below *names*, one in the other; None where there is no such place."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _items(value: object) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _values(value: object) -> tuple[Any, ...]:
    return tuple(value.values()) if isinstance(value, Mapping) else ()
