"""What quantizing and compiling gave in a build, from the records of its stages: counts, times, sizes, quality.

Fields of winml-cli's results have the same names here. Times are those of the original run; ``cached`` means that this
build took the result from the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from winml_dag.canonical import JsonObject, mapping
from winml_dag.engine.events import StageResult, Status
from winml_dag.pipeline.buildgraph import BuildSummary, prefixed
from winml_dag.pipeline.layout import RANGES, is_builtin, published_outputs
from winml_dag.stages.quality import Quality, what_to_try

_NO_METRICS: JsonObject = {}
Step = TypeVar("Step")


@dataclass(frozen=True)
class QuantizeStep:
    """One quantize stage; a chain (4-bit weights, then float16) has several.

    Attributes:
        nodes_skipped_reasons: how many nodes that compute with floats were not quantized, by operator and reason.
        equalized_tensors, activations_kept_at_16_bits: how often 8-bit activations were protected from a few huge
            values.
        qdq_insertion_time_seconds: 0 for modes that insert no Q and DQ nodes.
    """

    id: str = ""
    mode: str = ""
    weight_type: str = ""
    activation_type: str = ""
    nodes_quantized: int = 0
    nodes_skipped: int = 0
    nodes_skipped_reasons: dict[str, dict[str, int]] = field(default_factory=dict)
    equalized_tensors: int = 0
    activations_kept_at_16_bits: int = 0
    qdq_insertion_time_seconds: float = 0.0
    postproc_time_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    size_before_bytes: int = 0
    size_after_bytes: int = 0
    cached: bool = False


@dataclass(frozen=True)
class CalibrationStep:
    """The stage calibrate: its data, and how long the model ran on it."""

    data: str = ""
    samples: int = 0
    calibration_time_seconds: float = 0.0
    cached: bool = False


@dataclass(frozen=True)
class QuantizeResult:
    """The result of a quantization.

    Attributes:
        success: whether the build succeeded.
        output_path: the quantized model to ship; None when the build failed.
        calibration_path: the user's copy of the activation ranges; None when not requested.
        total_time_seconds: the duration of this whole build.
        nodes_quantized, nodes_skipped, nodes_skipped_reasons: those of the final model, so of the last step.
        size_before_bytes: the model size before the first step, including external weights; 0 without a step.
        cached: whether all steps came from the cache.
        steps: one for each mode that was applied, in order.
        calibration: None when nothing was calibrated.
        quality: None when nothing was validated.
        poor: whether the quality is worse than usual for this precision; the last warning explains it.
        errors: why it failed, one sentence each.
        warnings: what to know before relying on the result, one sentence each.
    """

    success: bool
    output_path: Path | None
    calibration_path: Path | None
    calibration_time_seconds: float
    qdq_insertion_time_seconds: float
    postproc_time_seconds: float
    total_time_seconds: float
    nodes_quantized: int
    nodes_skipped: int
    nodes_skipped_reasons: Mapping[str, Mapping[str, int]]
    size_before_bytes: int
    size_after_bytes: int
    cached: bool
    steps: tuple[QuantizeStep, ...]
    calibration: CalibrationStep | None
    quality: Quality | None
    poor: bool
    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> JsonObject:
        value = asdict(self)
        for name in ("output_path", "calibration_path"):
            value[name] = None if value[name] is None else str(value[name])
        return value


def quantize_result(build: BuildSummary, done: Sequence[StageResult], elapsed_seconds: float) -> QuantizeResult | None:
    """Return the result of quantization in the results *done* of *build*; None for a build that does not quantize."""
    if all(stage.node.stage.name != "quantize" for stage in done):
        return None
    failed = any(stage.status is Status.FAILED for stage in done)
    steps = quantize_steps(done)
    calibration = calibration_step(done)
    last = steps[-1] if steps else None
    warning = _quality_warning(build.precision, done)
    return QuantizeResult(
        success=not failed,
        output_path=None if failed else build.final_artifact,
        calibration_path=None if failed else _calibration_path(build, done),
        calibration_time_seconds=0.0 if calibration is None else calibration.calibration_time_seconds,
        qdq_insertion_time_seconds=sum(step.qdq_insertion_time_seconds for step in steps),
        postproc_time_seconds=sum(step.postproc_time_seconds for step in steps),
        total_time_seconds=elapsed_seconds,
        nodes_quantized=last.nodes_quantized if last else 0,
        nodes_skipped=last.nodes_skipped if last else 0,
        nodes_skipped_reasons=last.nodes_skipped_reasons if last else {},
        size_before_bytes=steps[0].size_before_bytes if last else 0,
        size_after_bytes=last.size_after_bytes if last else 0,
        cached=bool(steps) and all(step.cached for step in steps),
        steps=steps,
        calibration=calibration,
        quality=quality_of(done),
        poor=warning is not None,
        errors=tuple(f"{stage.node.id}: {stage.error}" for stage in done if stage.error),
        warnings=(*build.notices, *_warnings(done), *([] if warning is None else [warning])),
    )


def _warnings(results: Sequence[StageResult]) -> Iterator[str]:
    """Yield the warnings of validate about the float model."""
    for stage in results:
        found = _metrics(stage).get("warnings") if _is(stage, "validate") else None
        yield from map(str, found if isinstance(found, list | tuple) else ())


def _quality_warning(precision: str | None, done: Sequence[StageResult]) -> str | None:
    """Return a warning if a quantized model is worse than usual for its precision."""
    quality = quality_of(done)
    if quality is None or precision is None or (shortfall := quality.shortfall(precision)) is None:
        return None
    calibration = calibration_step(done)
    calibrated_on = None if calibration is None else calibration.data
    advice = what_to_try(precision, calibrated_on=calibrated_on, measured_on=quality.data)
    return f"The quality is poor: {shortfall}. {advice}".rstrip()


def quality_json(results: Sequence[StageResult], precision: str | None) -> JsonObject | None:
    """Return the quality as JSON, with whether it is poor."""
    quality = quality_of(results)
    if quality is None:
        return None
    return {**quality.to_json(), "poor": precision is not None and quality.shortfall(precision) is not None}


def quantize_steps(results: Sequence[StageResult]) -> tuple[QuantizeStep, ...]:
    """Return the successful quantize steps among *results*, in order."""
    return tuple(
        from_metrics(
            QuantizeStep,
            stage,
            id=stage.node.id,
            elapsed_seconds=0.0 if stage.record is None else stage.record.elapsed_seconds,
        )
        for stage in results
        if _is(stage, "quantize")
    )


def calibration_step(results: Sequence[StageResult]) -> CalibrationStep | None:
    stage = next((stage for stage in results if _is(stage, "calibrate")), None)
    return None if stage is None else from_metrics(CalibrationStep, stage)


def quality_of(results: Sequence[StageResult]) -> Quality | None:
    """Return the quality from validate, if something was quantized: for a float model it is not meaningful."""
    if not any(_is(stage, "quantize") for stage in results):
        return None
    stage = next((stage for stage in results if _is(stage, "validate")), None)
    return None if stage is None else Quality.from_json(_metrics(stage).get("quality"))


def _calibration_path(build: BuildSummary, done: Sequence[StageResult]) -> Path | None:
    node = next((stage.node for stage in done if _is(stage, "calibrate")), None)
    if node is None:
        return None
    if node.folder is not None:
        return node.folder / node.paths["ranges"]
    for _, component in published_outputs(node, build.settings, build.components):
        return build.output_dir / prefixed(RANGES, component)
    return None


def _is(stage: StageResult, name: str) -> bool:
    """Whether *stage* is the built-in stage *name*, and has a result."""
    return stage.node.stage.name == name and is_builtin(stage.node) and stage.record is not None


def _metrics(stage: StageResult) -> JsonObject:
    return _NO_METRICS if stage.record is None else stage.record.metrics


def from_metrics(kind: type[Step], stage: StageResult, **others: object) -> Step:
    """Return *kind* with the metrics of *stage* and *others*; its defaults if an older version wrote other metrics."""
    # Imported here: an up-to-date build needs no pydantic.
    from pydantic import TypeAdapter, ValidationError

    others["cached"] = stage.status is not Status.RAN
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_python({**_metrics(stage), **others})
    except ValidationError:
        return adapter.validate_python(others)


@dataclass(frozen=True)
class CompileResult:
    """A successful compilation.

    Attributes:
        ep_context_partitions: partitions that the provider runs, one EPContext node each.
        nodes_on_cpu: the number of operators left on the CPU, by type.
        cpu_nodes: these nodes, with ``name`` and ``op_type`` of each.
        edge_quantization_nodes: conversions of the model's inputs and outputs, left on the CPU on purpose.
        ep_sdk_version, ep_compatibility_info: as written by the provider; empty if it writes none.
        binary_size_bytes: the size of all binaries, embedded in the model or next to it.
        elapsed_seconds: the duration of the whole stage, including reading and checking.
    """

    execution_provider: str = ""
    device: str = ""
    ep_context_partitions: int = 0
    nodes_on_cpu: dict[str, int] = field(default_factory=dict)
    cpu_nodes: tuple[dict[str, str], ...] = ()
    edge_quantization_nodes: int = 0
    ep_sdk_version: str = ""
    ep_compatibility_info: str = ""
    binary_size_bytes: int = 0
    compile_time_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    cached: bool = False

    def to_json(self) -> JsonObject:
        return asdict(self)


def compile_result(results: Sequence[StageResult]) -> CompileResult | None:
    """Return the result of compilation among *results*; None if the build compiles nothing or failed earlier."""
    stage = next((each for each in results if _is(each, "compile")), None)
    if stage is None or stage.record is None:
        return None
    chosen = mapping(stage.record.key_inputs.config.get("compile"))
    return from_metrics(
        CompileResult,
        stage,
        execution_provider=chosen.get("execution_provider", ""),
        device=chosen.get("device", ""),
        elapsed_seconds=stage.record.elapsed_seconds,
    )
