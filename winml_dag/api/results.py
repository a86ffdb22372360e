"""What measures found, as values for Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winml_dag.canonical import JsonObject
from winml_dag.pipeline.assess.eval import AGREEMENTS, EvaluationPlan, report_of
from winml_dag.pipeline.assess.measurement import Measurement
from winml_dag.pipeline.buildresult import CommandResult

if TYPE_CHECKING:
    from winml_dag.onnxmodel.compare import Agreement
    from winml_dag.stages.evaluate.metrics import Difference, Estimate


@dataclass(frozen=True)
class Latency:
    """Milliseconds per inference, over ``inferences`` runs. Percentiles use the nearest rank."""

    inferences: int
    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float
    std: float


@dataclass(frozen=True)
class PerfResult:
    """How fast a model is.

    Attributes:
        cached, made_at: whether the result comes from the cache, and when it was measured.
        load_seconds: the median of loads in fresh processes; ``baseline_load_seconds``: that of the baseline, None
            without one.
        first_inference_ms: the first inference after loading.
        peak_memory_bytes: None if the system does not report it.
        notices: what to know before relying on the numbers, one sentence each.
        report: everything measured, as in ``perf.json`` but without the single inferences.
    """

    cached: bool
    made_at: str
    load_seconds: float
    baseline_load_seconds: float | None
    first_inference_ms: float
    latency_ms: Latency
    inferences_per_second: float
    samples_per_second: float
    peak_memory_bytes: int | None
    notices: tuple[str, ...]
    report: JsonObject


def perf_result(done: Measurement) -> PerfResult:
    """Return the result of *done*, a measurement that succeeded."""
    found: Any = done.metrics
    latency = {name: value for name, value in found["latency_ms"].items() if name != "percentiles"}
    return PerfResult(
        cached=not done.is_live,
        made_at=done.made_at,
        load_seconds=found["load"]["seconds"],
        baseline_load_seconds=None if found["baseline"] is None else found["baseline"]["load"]["seconds"],
        first_inference_ms=found["first_inference_ms"],
        latency_ms=Latency(**latency),
        inferences_per_second=found["throughput"]["inferences_per_second"],
        samples_per_second=found["throughput"]["samples_per_second"],
        peak_memory_bytes=found["memory_bytes"]["peak"],
        notices=tuple(found["notices"]),
        report=done.report,
    )


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


def validation_result(done: Measurement) -> CommandResult:
    """Return the result of a validation, which makes no file: its measurements are the result."""
    report = done.report
    record, warnings = done.results[0].record, report.get("warnings")
    return CommandResult(
        success=done.failed is None,
        output_path=None,
        total_time_seconds=done.elapsed_seconds,
        elapsed_seconds=0.0 if record is None else record.elapsed_seconds,
        cached=not done.is_live,
        metrics=report,
        validation=report,
        errors=(),
        warnings=tuple(map(str, warnings)) if isinstance(warnings, list | tuple) else (),
    )
