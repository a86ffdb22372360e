"""Validate, measure and evaluate finished models from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from winml_dag.api.arguments import FileArguments, only_known, remote_of, store_of
from winml_dag.api.results import EvalResult, PerfResult, eval_result, perf_result, validation_result
from winml_dag.pipeline.assess.builtmodel import BuiltModel, find_built_model
from winml_dag.pipeline.assess.eval import eval_section, plan_evaluation
from winml_dag.pipeline.assess.measurement import AssessmentPlan, AssessmentRequest, Measurement, carry_out
from winml_dag.pipeline.assess.perf import plan_perf
from winml_dag.pipeline.assess.validate import plan_validation
from winml_dag.pipeline.buildresult import CommandResult
from winml_dag.pipeline.run import BuildOptions
from winml_dag.recipe.schema import Eval, Perf, Validate
from winml_dag.store.store import Store

P = TypeVar("P", bound=AssessmentPlan)
R = TypeVar("R")


@only_known
def validate_onnx(
    model: str | Path,
    *,
    reference: str | Path | None = None,
    precision: str | None = None,
    ep: str | None = None,
    device: str | None = None,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Run a finished *model* on its target and compare its outputs with *reference*.

    *model* is an ONNX file, or the output folder of a build. *reference* is by default the float model that its build
    kept. *precision*: the precision whose thresholds apply, by default the model's own. *config*: fields of
    ``validate``. Raises the same errors as :func:`export_model`.
    """
    against = None if reference is None else Path(reference)
    request = AssessmentRequest(Validate.from_dict(config or {}), Path.cwd(), ep, device, reference=against, task=task)
    _, done = _assess(model, request, partial(plan_validation, precision=precision), arguments)
    return validation_result(done)


@only_known
def measure_onnx(
    model: str | Path,
    *,
    ep: str | None = None,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    baseline: str | Path | None = None,
    output_dir: str | Path | None = None,
    **arguments: Unpack[FileArguments],
) -> PerfResult:
    """Measure how fast a finished *model* loads and runs.

    *model* is an ONNX file, or the output folder of a build. It runs on *ep* and *device*, by default the target that
    it was built for. ``force_rebuild`` measures again. *config*: fields of ``perf``. *baseline*: a model whose load
    time is measured as well, by default the one that a compiled model was made from. *output_dir*: where reports go.
    Raises the same errors as :func:`export_model`.
    """
    against = None if baseline is None else Path(baseline)
    request = AssessmentRequest(Perf.from_dict(config or {}), Path.cwd(), ep, device, reference=against)
    plan = partial(plan_perf, draws=output_dir is not None)
    _, done = _assess(model, request, plan, arguments, output_dir)
    return perf_result(done)


@only_known
def evaluate_onnx(
    model: str | Path,
    dataset: str | Path | None = None,
    *,
    task: str | None = None,
    reference: str | Path | None = None,
    ep: str | None = None,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
    **arguments: Unpack[FileArguments],
) -> EvalResult:
    """Evaluate a finished *model* on *dataset*: a file, a folder, or a hub id.

    *model* is an ONNX file, or the output folder of a build. *task*: by default the one that it was built for.
    *reference*: a model to evaluate as well, by default the float model that its build kept. *config*: fields of
    ``eval``. *output_dir*: where the report goes. Raises the same errors as :func:`export_model`.
    """
    named = {"task": task, "reference_path": reference, "ep": ep, "device": device}
    given = {name: os.fspath(value) for name, value in named.items() if value is not None}
    data = {} if dataset is None else {"path": os.fspath(dataset)}
    request = AssessmentRequest(eval_section(Eval.from_dict(config or {}), given, data), Path.cwd())
    plan, done = _assess(model, request, plan_evaluation, arguments, output_dir)
    return eval_result(plan, done)


def _assess(
    model: str | Path,
    request: R,
    plan: Callable[[BuiltModel, R, Store], P],
    arguments: FileArguments,
    folder: str | Path | None = None,
) -> tuple[P, Measurement]:
    """Plan *request* for the finished *model* and run that. Reports go to *folder*."""
    with store_of(arguments, remote_of(arguments)) as store:
        planned = plan(find_built_model(Path(model)), request, store)
        options = BuildOptions(rebuild=arguments.get("rebuild", False), overwrite=arguments.get("overwrite", False))
        to = None if folder is None else Path(folder)
        done = carry_out(planned.measurement, store, options, folder=to, observer=arguments.get("observer"))
    if done.failed is not None:
        raise done.failed.as_error()
    return planned, done
