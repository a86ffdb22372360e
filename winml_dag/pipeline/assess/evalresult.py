"""What an evaluation found: the values that bounds apply to, and the result for Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.assess.measurement import Measurement
from winml_dag.stages.evaluate import METRICS

if TYPE_CHECKING:
    from winml_dag.onnxmodel.compare import Agreement
    from winml_dag.pipeline.assess.eval import EvaluationPlan
    from winml_dag.stages.evaluate.metrics import Difference, Estimate

AGREEMENTS = ("top1", "top5", "exact")


@dataclass(frozen=True)
class MetricResult:
    """One metric of the model and of its reference, and their difference; None without a reference."""

    candidate: Estimate
    reference: Estimate | None
    difference: Difference | None


@dataclass(frozen=True)
class OutputResult:
    """One output compared with the reference's.

    None means undefined (no noise, NaN, no class scores, no integers). The metrics skip values that are NaN in the
    reference; ``reference_nan_count`` counts these.
    """

    cosine: float
    cosine_min: float | None
    sqnr_db: float | None
    max_abs_error: float | None
    nan_count: int
    inf_count: int
    reference_nan_count: int
    top1: Agreement | None
    top5: Agreement | None
    exact: Agreement | None


@dataclass(frozen=True)
class EvalResult:
    """How good a model is.

    Attributes:
        cached, made_at: whether the result comes from the cache, and when it was evaluated.
        samples, of: how many samples were used, and how many exist; ``of`` is None for random ones.
        metrics: by name, the most important first; empty in mode compare.
        outputs: by name, in mode compare.
        full_texts: how many texts fill the model's input, and may have been truncated.
        notices: what to know before relying on the numbers, one sentence each.
        report: everything found, as in ``evaluation.json``.
    """

    cached: bool
    made_at: str
    mode: str
    task: str | None
    samples: int
    of: int | None
    metrics: Mapping[str, MetricResult]
    outputs: Mapping[str, OutputResult]
    full_texts: int
    notices: tuple[str, ...]
    report: JsonObject


def eval_result(plan: EvaluationPlan, done: Measurement) -> EvalResult:
    """Return the result of *done*, the evaluation of *plan*, which succeeded."""
    from winml_dag.onnxmodel.compare import Agreement
    from winml_dag.stages.evaluate.metrics import Difference, Estimate

    def estimate(value: Any) -> Estimate:
        return Estimate(value["value"], value["low"], value["high"], value["interval"])

    found: Any = report_of(done)
    metrics = {
        name: MetricResult(
            estimate(one["candidate"]),
            one["reference"] and estimate(one["reference"]),
            one["difference"] and Difference(**one["difference"]),
        )
        for name, one in found.get("metrics", {}).items()
    }
    outputs = {
        name: OutputResult(**{**one, **{each: one[each] and Agreement(**one[each]) for each in AGREEMENTS}})
        for name, one in found.get("outputs", {}).items()
    }
    return EvalResult(
        cached=not done.is_live,
        made_at=done.made_at,
        mode=found["mode"],
        task=plan.task,
        samples=found["samples"],
        of=found["of"],
        metrics=metrics,
        outputs=outputs,
        full_texts=found.get("full_texts", 0),
        notices=plan.notices,
        report=done.report,
    )


def figures(done: Measurement) -> dict[str, float | None]:
    """Return the values that bounds apply to: the metrics of a task, or the worst value over all outputs."""
    found: Any = report_of(done)
    if "metrics" in found:
        return {name: metric["candidate"]["value"] for name, metric in found["metrics"].items()}
    outputs = found["outputs"].values()
    # Without noise the ratio is infinite, which JSON cannot represent.
    infinite = {True: math.inf, False: -math.inf}
    ratios = [infinite[each["cosine"] == 1] if each["sqnr_db"] is None else each["sqnr_db"] for each in outputs]
    worst: dict[str, float | None] = {
        name: min((each[name] for each in outputs if each[name] is not None), default=None)
        for name in ("cosine", "cosine_min")
    }
    worst["sqnr_db"] = min(ratios, default=None)
    for name in AGREEMENTS:
        known = [output[name] for output in outputs if output[name] is not None]
        if known:
            worst[name] = min(one["agreed"] / one["of"] if one["of"] else 1.0 for one in known)
    return worst


def report_of(done: Measurement) -> JsonObject:
    """Return the report of the stage, with metrics in the task's order, because records sort names."""
    found: Any = dict(done.report)
    if "metrics" in found:
        metrics = found["metrics"]
        found["metrics"] = {name: metrics[name] for name in METRICS[found["task"]] if name in metrics}
    return cast(JsonObject, found)
