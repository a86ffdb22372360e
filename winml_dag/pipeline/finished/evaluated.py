"""What an evaluation found, of what it was: for ``--format json``, for bounds, and for sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.stages.evaluate import METRICS, REPORT_FILE
from winml_dag.store.quantities import counted

if TYPE_CHECKING:
    from winml_dag.pipeline.finished.evaluation import EvaluationPlan
    from winml_dag.pipeline.finished.measurement import Measurement

# Of the outputs' figures, those that are better when they are larger.
_OF_OUTPUTS = ("cosine", "cosine_min", "sqnr_db")
AGREEMENTS = ("top1", "top5", "exact")


def evaluated_json(
    plan: EvaluationPlan, done: Measurement, folder: Path | None, bounds: Mapping[str, float]
) -> JsonObject:
    """Everything that was found, of what, with what, and where it was put."""
    keeps = kept(bounds, done)
    found = figures(done)
    return {
        "success": all(keeps.values()),
        "model": str(plan.subject.model.path),
        "precision": plan.subject.precision,
        "reference": None if plan.reference is None else str(plan.reference.path),
        "measured": done.told,
        "made_at": done.made_at,
        "elapsed_seconds": round(done.elapsed_seconds, 3),
        **report_of(done),
        "bounds": {
            name: {"at_least": bound, "found": _finite(found[name]), "kept": keeps[name]}
            for name, bound in bounds.items()
        },
        "notices": list(notices_of(plan, done)),
        "toolchain": done.toolchain,
        "report": None if folder is None else str(folder / REPORT_FILE),
    }


def kept(bounds: Mapping[str, float], done: Measurement) -> dict[str, bool]:
    """Which of *bounds* the model keeps. What is not defined keeps none; a ratio to no noise keeps all."""
    found = figures(done)
    return {name: (value := found[name]) is not None and value >= bound for name, bound in bounds.items()}


def figures(done: Measurement) -> dict[str, float | None]:
    """What a bound may be put on: the metrics of a task; or of all outputs the worst."""
    found: Any = report_of(done)
    if "metrics" in found:
        return {name: metric["candidate"]["value"] for name, metric in found["metrics"].items()}
    outputs = found["outputs"].values()
    worst: dict[str, float | None] = {}
    for name in _OF_OUTPUTS:
        values = [_ratio(output) if name == "sqnr_db" else output[name] for output in outputs]
        worst[name] = min((value for value in values if value is not None), default=None)
    for name in AGREEMENTS:
        known = [output[name] for output in outputs if output[name] is not None]
        if known:
            worst[name] = min(one["agreed"] / one["of"] if one["of"] else 1.0 for one in known)
    return worst


def report_of(done: Measurement) -> JsonObject:
    """What the stage told, the metrics of a task in their order: records sort names."""
    found: Any = dict(done.report)
    if "metrics" in found:
        metrics = found["metrics"]
        found["metrics"] = {name: metrics[name] for name in METRICS[found["task"]] if name in metrics}
    report: JsonObject = found
    return report


def notices_of(plan: EvaluationPlan, done: Measurement) -> Iterator[str]:
    yield from plan.notices
    full: Any = done.metrics.get("full_texts")
    if full:
        yield (
            f"{counted(full, 'text')} {'fills' if full == 1 else 'fill'} the model's input to its last token; what was"
            " longer has been cut."
        )


def _ratio(output: Any) -> float:
    """Without noise it is infinite, which JSON has no number for."""
    ratio = output["sqnr_db"]
    if ratio is None:
        return float("inf") if output["cosine"] == 1 else float("-inf")
    return float(ratio)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
