"""Builds from Python, complete or of one stage: the same as on the command line, with the same files and cache."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from winml_dag.api.arguments import (
    HOW,
    Config,
    FileArguments,
    HfArguments,
    OnnxArguments,
    QuantizeArguments,
    driver_of,
    only_known,
    remote_of,
)
from winml_dag.errors import MeasuredError
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.commandresult import CommandResult, command_result
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.quantized import QuantizeResult
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.pipeline.search import WithoutRounds
from winml_dag.recipe.fields import Section
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.recipe.precision import chained
from winml_dag.recipe.schema import Compile as WinMLCompileConfig
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig

# Arguments that say how to build. All others say what to build, like the command-line options of the same names.
_HOW = (*HOW, "config", "observer")


@only_known
def build_hf_model(model: str | Path | None, output_dir: str | Path, **arguments: Unpack[HfArguments]) -> BuildResult:
    """Build a PyTorch model (a hub id or a folder; None takes the recipe's) into *output_dir*.

    Returns the outcome of every stage; for a composite model also per component, in ``components``.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    return _build(Path(output_dir), {"model": None if model is None else str(model)}, arguments)


@only_known
def build_onnx_model(onnx: str | Path, output_dir: str | Path, **arguments: Unpack[OnnxArguments]) -> BuildResult:
    """Build a model that is already ONNX into *output_dir*: everything after export. See :func:`build_hf_model`."""
    return _build(Path(output_dir), {"onnx": Path(onnx)}, arguments)


@only_known
def quantize_onnx(
    model: str | Path, output: str | Path | None = None, **arguments: Unpack[QuantizeArguments]
) -> QuantizeResult:
    """Quantize the ONNX file *model* into the file *output*, by default ``<model>_quantized.onnx`` next to it.

    Shares cached results with full builds of the same model. Returns what was quantized, the time it took and the
    quality of the result.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    model = Path(model)
    precision = arguments.get("precision")
    chain = chained([precision] if isinstance(precision, str) else precision or [])
    data = arguments.get("calibration_data")
    overrides = Overrides(
        onnx=model,
        task=arguments.get("task"),
        ep=arguments.get("ep"),
        device=arguments.get("device"),
        precision=chain.precision,
        settings={
            "export": arguments.get("export") or {},
            "quant": {**chain.fields, **({} if data is None else {"calibration_data": os.fspath(data)})},
        },
        validate=None if arguments.get("validate", True) else False,
    )
    config = arguments.get("config")
    recipe = None if config is None else _recipe({"quant": config})
    request = Request(
        recipe,
        overrides,
        command="quantize",
        output_file=beside(model, "quantize") if output is None else Path(output),
    )
    done = _run(request, arguments).quantization
    assert done is not None
    return done


@only_known
def export_model(
    model: str | Path,
    output: str | Path,
    *,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    submodel: str | None = None,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Export a PyTorch *model* (a hub id or a folder) into the ONNX file *output*. *config*: fields of ``export``.

    A composite model gives one file per component, named after *output* and the component: the first is the result's
    ``output_path``, the others its ``also_paths``. *submodel* exports only that component.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    overrides = Overrides(
        model=str(model),
        task=task,
        settings={"export": config or {}},
        trust_remote_code=trust_remote_code,
        submodel=submodel,
    )
    return _command(Request(None, overrides, command="export", output_file=Path(output)), arguments)


@only_known
def optimize_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    capabilities: Mapping[str, bool] | None = None,
    ep: str | None = None,
    device: str | None = None,
    export: Mapping[str, Any] | None = None,
    validate: bool = True,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Optimize the ONNX file *model* into the file *output*, by default ``<model>_opt.onnx`` next to it.

    *capabilities*: which to turn on or off. *export*: sizes of its inputs, as fields of that section. Raises the same
    errors as :func:`export_model`.
    """
    overrides = Overrides(
        onnx=Path(model),
        ep=ep,
        device=device,
        settings={"optim": capabilities or {}, "export": export or {}},
        validate=None if validate else False,
    )
    return _command(_of_onnx(model, output, "optimize", overrides), arguments)


@only_known
def calibrate_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    calibration_data: str | Path | None = None,
    config: WinMLQuantizationConfig | Mapping[str, Any] | None = None,
    task: str | None = None,
    export: Mapping[str, Any] | None = None,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Write the activation ranges of the ONNX file *model* into the file *output*.

    *output* is by default ``<model>_ranges.json`` next to the model. *config*: fields of ``quant``. *export*: sizes of
    its inputs, as fields of that section. Raises the same errors as :func:`export_model`.
    """
    settings = {} if config is None else dict(_fields(config))
    if calibration_data is not None:
        settings["calibration_data"] = str(Path(calibration_data).absolute())
    overrides = Overrides(onnx=Path(model), task=task, settings={"export": export or {}, "quant": settings})
    return _command(_of_onnx(model, output, "calibrate", overrides), arguments)


@only_known
def compile_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    ep: str | None = None,
    device: str | None = None,
    config: WinMLCompileConfig | Mapping[str, Any] | None = None,
    export: Mapping[str, Any] | None = None,
    also: Sequence[str | Path] = (),
    validate: bool = True,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Compile the ONNX file *model* for *ep* or *device* into the file *output*.

    *output* is by default ``<model>_compiled.onnx`` next to the model. A provider that runs ONNX models directly gets
    an optimized model. *config*: a ``WinMLCompileConfig``, or its fields as a mapping; its ``quant_config`` quantizes
    the model first; paths are relative to the current folder. *export*: sizes of its inputs, as fields of that section.
    *also*: further models, which share one binary with the first and are written next to it as
    ``<model>_compiled.onnx``. Raises the same errors as :func:`export_model`.
    """
    overrides = Overrides(
        onnx=Path(model),
        ep=ep,
        device=device,
        settings={"export": export or {}},
        validate=None if validate else False,
    )
    recipe = None if config is None else _recipe({"compile": config})
    request = replace(_of_onnx(model, output, "compile", overrides), recipe=recipe, also=tuple(map(Path, also)))
    return _command(request, arguments)


def _of_onnx(model: str | Path, output: str | Path | None, command: str, overrides: Overrides) -> Request:
    file = beside(Path(model), command) if output is None else Path(output)
    return Request(None, overrides, command=command, output_file=file)


def _command(request: Request, arguments: FileArguments) -> CommandResult:
    assert request.command is not None
    return command_result(_run(request, arguments), request.command)


def _fields(config: Section | Mapping[str, Any]) -> Mapping[str, Any]:
    return config.to_dict() if isinstance(config, Section) else config


def _build(output_dir: Path, model: dict[str, Any], arguments: HfArguments | OnnxArguments) -> BuildResult:
    what: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _HOW}
    config = arguments.get("config")
    final_only = arguments.get("final_only", False)
    request = Request(_recipe(config), Overrides(**model, **what), output_dir, final_only=final_only)
    return _run(request, arguments, config)


def _run(request: Request, arguments: FileArguments | OnnxArguments, config: object = None) -> BuildResult:
    """Run *request*. *config*: the recipe, if it is a file."""
    request = replace(request, remote=remote_of(arguments, config))
    observer = arguments.get("observer")
    told = None if observer is None else WithoutRounds(observer)
    with driver_of(arguments, request.remote, told) as driver:
        result = build(plan_request(request, driver.store, download=True), driver)
    for view in result.stages:
        if view.result is not None and view.result.error:
            failed = view.result
            raise MeasuredError(f"{view.id} failed: {failed.error}", advice=failed.advice, metrics=failed.metrics)
    return result


def _plain(value: Any) -> object:
    return value.to_dict() if isinstance(value, Section) else os.fspath(value)


def _recipe(config: Config | None) -> Path | LoadedRecipe | None:
    if config is None or isinstance(config, str | Path):
        return None if config is None else Path(config)
    recipe = parse_recipe(json.dumps(config, default=_plain), "config", "json")
    return LoadedRecipe(Path.cwd() / "config", recipe, "json")
