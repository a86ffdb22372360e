"""The stage validate, run on small models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from quantization_samples import put

from winml_dag.engine.exchange import OnProgress, no_progress
from winml_dag.engine.stage import Workspace
from winml_dag.ep.availability import RunTarget, resolve_target
from winml_dag.ep.provider import complete_options
from winml_dag.stages.quality import Bounds, rounding
from winml_dag.stages.validate import REPORT_NAME, ValidateConfig, ValidateFields, run

CPU = RunTarget("CPUExecutionProvider", "cpu")
NPU = RunTarget("QNNExecutionProvider", "npu", complete_options(resolve_target("qnn", "npu"), {}))


def validate(
    folder: Path,
    candidate: onnx.ModelProto | Path,
    reference: onnx.ModelProto | None = None,
    *,
    precision: str = "",
    target: RunTarget = CPU,
    progress: OnProgress = no_progress,
    slots: Mapping[str, Path] | None = None,
    **fields: Any,
) -> Any:
    """Run validate in *folder* and return its report.

    Args:
        candidate: a model, or a folder with one.
        precision: whose thresholds hold; if empty, only those of *fields* do.
        slots: further inputs.
    """
    inputs = {"model": candidate if isinstance(candidate, Path) else put(folder / "model", candidate), **(slots or {})}
    if reference is not None:
        inputs["reference"] = put(folder / "reference", reference)
    (folder / "report").mkdir(parents=True)
    given: dict[str, Any] = {"min_cosine": None}
    if precision:
        given = {**dataclasses.asdict(Bounds().completed(precision)), "rounding": rounding(precision, in_half=False)}
    config = ValidateConfig(ValidateFields(**{**given, **fields}), target)
    report = run(config, Workspace(inputs, {"report": folder / "report"}, progress))
    assert json.loads((folder / "report" / REPORT_NAME).read_text()) == report
    return report
