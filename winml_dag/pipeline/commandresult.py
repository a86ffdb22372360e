"""The result of a command for one stage, assembled from the records of its stages; quantize has a result of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.events import Status
from winml_dag.frozen import frozen
from winml_dag.stages.quality import Quality

if TYPE_CHECKING:
    from winml_dag.pipeline.assess.measurement import Measurement
    from winml_dag.pipeline.buildresult import BuildResult, StageView

_NO_METRICS: JsonObject = {}


@frozen
class CommandResult:
    """The result of a command.

    Attributes:
        success: whether it succeeded.
        output_path: the file that it made; None when it failed, and for validate, which makes none.
        also_paths: further models that share a binary with it.
        total_time_seconds: the duration of this whole call.
        elapsed_seconds: the duration of the command's stage when it ran.
        cached: whether the result of its stage comes from the cache.
        metrics: the metrics of its stage.
        validation: what validate measured on the result; None when that was not requested.
        errors: why it failed, one sentence each.
        warnings: what to know before relying on the result, one sentence each.
    """

    success: bool
    output_path: Path | None
    total_time_seconds: float
    elapsed_seconds: float
    cached: bool
    metrics: JsonObject
    validation: JsonObject | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    also_paths: tuple[Path, ...] = ()

    @property
    def quality(self) -> Quality | None:
        """How far the result is from its source model; None if nothing was compared."""
        return None if self.validation is None else Quality.from_json(self.validation.get("quality"))

    def to_json(self) -> JsonObject:
        value = asdict(self)
        value["output_path"] = None if self.output_path is None else str(self.output_path)
        value["also_paths"] = [str(path) for path in self.also_paths]
        return value


def command_result(result: BuildResult, command: str) -> CommandResult:
    """Return the result of *command*, whose stage has the same name, from *result*."""
    main = main_view(result, command)
    validation = next((view for view in result.stages if view.stage == "validate"), None)
    return CommandResult(
        success=not result.failed,
        output_path=result.final_artifact,
        total_time_seconds=result.elapsed_seconds,
        elapsed_seconds=0.0
        if main.result is None or main.result.record is None
        else main.result.record.elapsed_seconds,
        cached=main.status is Status.REUSED,
        metrics=_metrics(main) or _NO_METRICS,
        validation=None if validation is None else _metrics(validation),
        errors=tuple(f"{stage.node.id}: {stage.error}" for stage in result.results if stage.error),
        warnings=result.build.notices,
        also_paths=() if result.failed else tuple(result.build.output_dir / name for name in result.build.also),
    )


def main_view(result: BuildResult, command: str) -> StageView:
    """Return the main stage of *command*; if the model was optimized instead of compiled, that is optimize."""
    names = (command, "optimize", "finalize")
    return next(view for name in names for view in result.stages if view.stage == name and view.result is not None)


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


def _metrics(view: StageView) -> JsonObject | None:
    return None if view.result is None or view.result.record is None else view.result.record.metrics
