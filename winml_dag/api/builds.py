"""Builds from Python, complete, of one stage or of a sweep: the same as on the command line, with the same files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Unpack

from winml_dag.api.arguments import (
    Config,
    FileArguments,
    HfArguments,
    OnnxArguments,
    QuantizeArguments,
    SweepArguments,
    driver_of,
    only_known,
    remote_of,
)
from winml_dag.pipeline.build import build
from winml_dag.pipeline.buildresult import BuildResult, CommandResult, command_result
from winml_dag.pipeline.plan_cache import plan_request
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.pipeline.search import WithoutRounds
from winml_dag.pipeline.stageresults import QuantizeResult
from winml_dag.pipeline.sweep.cells import Selection
from winml_dag.pipeline.sweep.result import SweepResult
from winml_dag.pipeline.sweep.run import SilentWatcher, SweepRun, run_sweep
from winml_dag.recipe.fields import Section
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.recipe.precision import chained
from winml_dag.recipe.schema import Compile as WinMLCompileConfig
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig

_OVERRIDES = frozenset(field.name for field in fields(Overrides))
# Options without a ``--no-`` form on the command line.
_FLAGS = frozenset({"allow_unsupported_nodes", "random_weights", "trust_remote_code", "final_only"})


@only_known
def build_hf_model(model: str | Path | None, output_dir: str | Path, **arguments: Unpack[HfArguments]) -> BuildResult:
    """Build a PyTorch model (a hub id or a folder; None takes the recipe's) into *output_dir*.

    Returns the outcome of every stage; for a composite model also per component, in ``components``.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    return _build(output_dir, {**arguments, "model": None if model is None else str(model)})


@only_known
def build_onnx_model(onnx: str | Path, output_dir: str | Path, **arguments: Unpack[OnnxArguments]) -> BuildResult:
    """Build a model that is already ONNX into *output_dir*: everything after export. See :func:`build_hf_model`."""
    return _build(output_dir, {**arguments, "onnx": Path(onnx)})


@only_known
def build_sweep(
    config: str | Path | Sequence[str | Path],
    output_dir: str | Path | None = None,
    **arguments: Unpack[SweepArguments],
) -> SweepResult:
    """Build all cells of the sweep *config* into *output_dir*, measure them and pursue the goals of the sweep.

    *config* is a sweep, or several recipes, a folder or a pattern of them. *output_dir* is by default the recipe's.
    Returns the contents of ``sweep.json``: failed cells are reported there and raise nothing.

    Raises:
        RecipeError, UsageError, InputError, StoreError: as their names say, when nothing can be started.
    """
    named = [Path(config)] if isinstance(config, str | os.PathLike) else [Path(each) for each in config]
    remote = remote_of(arguments, next(iter(named), None))
    folder = None if output_dir is None else Path(output_dir)
    final_only = arguments.get("final_only", False)
    request = Request(None, _overrides(arguments), folder, remote=remote, final_only=final_only)
    filters = tuple(arguments.get("filters", ()))
    selection = Selection(filters, arguments.get("shard"), arguments.get("retry_failed", False))
    sweep = SweepRun.of(named, request, selection, _words(arguments, named, folder))
    watcher = arguments.get("watcher") or SilentWatcher()
    with driver_of({"keep_going": True, **arguments}, remote) as driver:
        return run_sweep(sweep, driver.store, driver.options, watcher).result


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
    precision, config = arguments.get("precision"), arguments.get("config")
    first, fields = chained([precision] if isinstance(precision, str) else precision or [])
    data = arguments.get("calibration_data")
    given = {**arguments, "onnx": model, "precision": first}
    sections = {
        "export": arguments.get("export"),
        "quant": {**fields, **({} if data is None else {"calibration_data": os.fspath(data)})},
    }
    done = _stage("quantize", output, given, sections, config=None if config is None else {"quant": config})
    assert done.quantization is not None
    return done.quantization


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
    named = {"model": str(model), "task": task, "trust_remote_code": trust_remote_code, "submodel": submodel}
    return command_result(_stage("export", output, {**arguments, **named}, {"export": config}), "export")


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
    given = {**arguments, "onnx": model, "ep": ep, "device": device, "validate": validate}
    sections = {"optim": capabilities, "export": export}
    return command_result(_stage("optimize", output, given, sections), "optimize")


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
    quant = dict(config.to_dict() if isinstance(config, Section) else config or {})
    if calibration_data is not None:
        quant["calibration_data"] = str(Path(calibration_data).absolute())
    sections = {"export": export, "quant": quant}
    given = {**arguments, "onnx": model, "task": task}
    return command_result(_stage("calibrate", output, given, sections), "calibrate")


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
    given = {**arguments, "onnx": model, "ep": ep, "device": device, "validate": validate}
    recipe = None if config is None else {"compile": config}
    done = _stage("compile", output, given, {"export": export}, config=recipe, also=also)
    return command_result(done, "compile")


def _overrides(arguments: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Overrides:
    """Return what *arguments* change in a recipe: those named like a field of ``Overrides``, and *settings*."""
    return Overrides(**{name: arguments[name] for name in _OVERRIDES & arguments.keys()}, settings=settings)


def _build(output_dir: str | Path, arguments: Mapping[str, Any]) -> BuildResult:
    config = arguments.get("config")
    final_only = arguments.get("final_only", False)
    request = Request(_recipe(config), _overrides(arguments), Path(output_dir), final_only=final_only)
    return _run(request, arguments, config)


def _stage(
    command: str,
    output: str | Path | None,
    arguments: Mapping[str, Any],
    sections: Mapping[str, Any],
    *,
    config: Config | None = None,
    also: Sequence[str | Path] = (),
) -> BuildResult:
    """Run the stage *command*; *sections*: fields of the recipe, by section."""
    given = dict(arguments)
    if given.pop("validate", True) is False:
        given["validate"] = False
    if "onnx" in given:
        given["onnx"] = Path(given["onnx"])
    overrides = _overrides(given, {name: fields for name, fields in sections.items() if fields})
    file = beside(given["onnx"], command) if output is None else Path(output)
    request = Request(
        _recipe(config), overrides, command=command, output_file=file, also=tuple(Path(each) for each in also)
    )
    return _run(request, arguments)


def _run(request: Request, arguments: Mapping[str, Any], config: object = None) -> BuildResult:
    """Run *request*. *config*: the recipe, if it is a file."""
    request = replace(request, remote=remote_of(arguments, config))
    observer = arguments.get("observer")
    display = None if observer is None else WithoutRounds(observer)
    with driver_of(arguments, request.remote, display) as opened, opened.while_planning([request]) as driver:
        result = build(plan_request(request, driver.store, download=True), driver)
    for view in result.stages:
        if view.result is not None and view.result.error:
            raise view.result.as_error()
    return result


def _plain(value: Any) -> object:
    return value.to_dict() if isinstance(value, Section) else os.fspath(value)


def _recipe(config: Config | None) -> Path | LoadedRecipe | None:
    if config is None or isinstance(config, str | Path):
        return None if config is None else Path(config)
    recipe = parse_recipe(json.dumps(config, default=_plain), "config", "json")
    return LoadedRecipe(Path.cwd() / "config", recipe, "json")


def _words(arguments: Mapping[str, object], named: Sequence[Path], folder: Path | None) -> str:
    """Return the command that builds the same: its options have the names of *arguments*."""
    from winml_dag.store.remote.settings import shown

    words = [word for path in named for word in ("-c", str(path))]
    words += [] if folder is None else ["-o", str(folder)]
    known = _OVERRIDES | {"remote", "remote_mode", "final_only"}
    for name, value in arguments.items():
        if name not in known:
            continue
        option = name.replace("_", "-")
        if isinstance(value, bool):
            # An option without a ``--no-`` form is off when omitted.
            words += [f"--{option}"] if value else [] if name in _FLAGS else [f"--no-{option}"]
        elif value is not None:
            several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
            # The command is written to files, so it must not contain a password.
            words += [
                word
                for each in several
                for word in (f"--{option}", shown(str(each)) if name == "remote" else str(each))
            ]
    return shlex.join(("winml-dag", "build", *words))
