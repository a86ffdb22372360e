"""The Python API: the same builds as on the command line, with the same files and the same cache.

from winml_dag import build_hf_model
result = build_hf_model("./minilm", "out", config="recipe.yaml", precision="w8a16")

from winml_dag import quantize_onnx
done = quantize_onnx("model.onnx", precision="w8a16", calibration_data="samples.npz")

export_model, optimize_onnx, calibrate_onnx, compile_onnx and validate_onnx do one stage each, in the same way;
measure_onnx and evaluate_onnx tell how fast a model is, and how good.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

from winml_dag.engine.events import Observer
from winml_dag.engine.measurederror import MeasuredError
from winml_dag.pipeline.build import BuildOptions, build
from winml_dag.pipeline.buildresult import BuildResult
from winml_dag.pipeline.commandresult import CommandResult, command_result, validation_result
from winml_dag.pipeline.measured import EvalResult, PerfResult, eval_result, perf_result
from winml_dag.pipeline.measurement import Measurement, MeasurementGraph, carry_out
from winml_dag.pipeline.planning import plan_request
from winml_dag.pipeline.quantized import QuantizeResult, quantize_result
from winml_dag.pipeline.request import Overrides, Request, beside
from winml_dag.pipeline.subject import find_subject
from winml_dag.recipe.assessment import Eval, Perf, Validate
from winml_dag.recipe.chain import chained
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.recipe.schema import Quant as WinMLQuantizationConfig
from winml_dag.recipe.schema import section_of
from winml_dag.store.local import LocalStore
from winml_dag.store.location import default_cache_dir

Config: TypeAlias = str | Path | Mapping[str, Any]


class OnnxArguments(TypedDict, total=False):
    """What every build takes. None, or leaving one out, lets the recipe decide.

    ``config`` is a recipe: its file, or the same as a mapping, whose paths are then relative to the current folder.
    ``force_rebuild`` runs every stage, known or not; ``link`` puts read-only links into the cache into the output
    folder, not copies; ``observer`` is told of every stage that starts or ends.
    """

    config: Config | None
    task: str | None
    ep: str | None
    device: str | None
    precision: str | None
    quant: bool | None
    compile: bool | None
    optimize: bool | None
    force_rebuild: bool
    link: bool
    jobs: int
    cache_dir: str | Path | None
    observer: Observer | None


class HfArguments(OnnxArguments, total=False):
    """What a build from PyTorch takes as well."""

    random_weights: bool
    trust_remote_code: bool


class FileArguments(TypedDict, total=False):
    """What every function for one stage takes: how to go about it.

    ``overwrite``: replace a file that is not ours. The others are as for a build.
    """

    overwrite: bool
    force_rebuild: bool
    cache_dir: str | Path | None
    observer: Observer | None


class QuantizeArguments(FileArguments, total=False):
    """What :func:`quantize_onnx` takes. None, or leaving one out, lets ``config`` decide.

    ``precision``: one, or several that are applied one after the other (``["int4", "fp16"]``). ``config``: a
    ``WinMLQuantizationConfig``, or its fields as a mapping; paths are relative to the current folder.
    ``calibration_data``: a file or folder. ``ep``, ``device``: whose rules to follow; the CPU's when left out.
    ``validate``: hold the result against the float model.
    """

    precision: str | Sequence[str] | None
    config: WinMLQuantizationConfig | Mapping[str, Any] | None
    calibration_data: str | Path | None
    task: str | None
    ep: str | None
    device: str | None
    validate: bool


# Those that say how to build; all others say what, as the command line's options of the same names do.
_HOW = ("config", "force_rebuild", "link", "jobs", "cache_dir", "observer")


def build_hf_model(model: str | Path | None, output_dir: str | Path, **arguments: Unpack[HfArguments]) -> BuildResult:
    """Build a PyTorch model (a hub id or a folder; None takes the recipe's) into *output_dir*.

    Returns what became of every stage.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    return _build(Path(output_dir), {"model": None if model is None else str(model)}, arguments)


def build_onnx_model(onnx: str | Path, output_dir: str | Path, **arguments: Unpack[OnnxArguments]) -> BuildResult:
    """Build a model that is ONNX already into *output_dir*: everything after export. See :func:`build_hf_model`."""
    return _build(Path(output_dir), {"onnx": Path(onnx)}, arguments)


def quantize_onnx(
    model: str | Path, output: str | Path | None = None, **arguments: Unpack[QuantizeArguments]
) -> QuantizeResult:
    """Quantize the ONNX file *model* into the file *output*, by default ``<model>_quantized.onnx`` beside it.

    What a build of the same model has done is reused, and the other way round. Returns what was quantized, how long it
    took and how good it is.

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
        quant_settings={**chain.fields, **({} if data is None else {"calibration_data": os.fspath(data)})},
        validate=None if arguments.get("validate", True) else False,
    )
    config = arguments.get("config")
    recipe = None if config is None else _recipe({"quant": _fields(config)})
    request = Request(
        recipe,
        overrides,
        command="quantize",
        output_file=beside(model, "quantize") if output is None else Path(output),
    )
    done = quantize_result(_carry_out_one(request, arguments))
    assert done is not None
    return done


def export_model(
    model: str | Path,
    output: str | Path,
    *,
    task: str | None = None,
    config: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Export a PyTorch *model* (a hub id or a folder) into the ONNX file *output*. *config*: fields of ``export``.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    overrides = Overrides(
        model=str(model), task=task, settings={"export": config or {}}, trust_remote_code=trust_remote_code
    )
    return _command(Request(None, overrides, command="export", output_file=Path(output)), arguments)


def optimize_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    flags: Mapping[str, bool] | None = None,
    ep: str | None = None,
    device: str | None = None,
    validate: bool = True,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Optimize the ONNX file *model* into the file *output*, by default ``<model>_opt.onnx`` beside it, with *flags* on
    or off. Raises as :func:`export_model` does.
    """
    overrides = Overrides(
        onnx=Path(model), ep=ep, device=device, settings={"optim": flags or {}}, validate=None if validate else False
    )
    return _command(_of_onnx(model, output, "optimize", overrides), arguments)


def calibrate_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    calibration_data: str | Path | None = None,
    config: WinMLQuantizationConfig | Mapping[str, Any] | None = None,
    task: str | None = None,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Put the ranges of the activations of the ONNX file *model* into the file *output*, by default
    ``<model>_ranges.json`` beside it. *config*: fields of ``quant``. Raises as :func:`export_model` does.
    """
    settings = {} if config is None else dict(_fields(config))
    if calibration_data is not None:
        settings["calibration_data"] = str(Path(calibration_data).absolute())
    overrides = Overrides(onnx=Path(model), task=task, quant_settings=settings)
    return _command(_of_onnx(model, output, "calibrate", overrides), arguments)


def compile_onnx(
    model: str | Path,
    output: str | Path | None = None,
    *,
    ep: str | None = None,
    device: str | None = None,
    config: Mapping[str, Any] | None = None,
    also: Sequence[str | Path] = (),
    validate: bool = True,
    **arguments: Unpack[FileArguments],
) -> CommandResult:
    """Compile the ONNX file *model* for *ep* or *device* into the file *output*, by default ``<model>_compiled.onnx``
    beside it. *config*: fields of ``compile``. *also*: further models, which get one binary with the first, and are put
    beside it as ``<model>_compiled.onnx``. Raises as :func:`export_model` does.
    """
    overrides = Overrides(
        onnx=Path(model), ep=ep, device=device, compile_settings=config, validate=None if validate else False
    )
    request = replace(_of_onnx(model, output, "compile", overrides), also=tuple(map(Path, also)))
    return _command(request, arguments)


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
    """Run a finished *model* (an ONNX file, or the output folder of a build) where it is to run, and hold it against
    *reference*, by default the float model that its build left. *precision*: whose bounds count, by default the
    model's own. *config*: fields of ``validate``. Raises as :func:`export_model` does.
    """
    from winml_dag.pipeline.validationplan import ValidationRequest, plan_validation

    request = ValidationRequest(
        section_of(Validate, config or {}, "validate"),
        Path.cwd(),
        reference=None if reference is None else Path(reference),
        has_reference=True,
        precision=precision,
        ep=ep,
        device=device,
        options={},
        task=task,
        model_id=None,
    )
    store = _store(arguments.get("cache_dir"))
    plan = plan_validation(find_subject(Path(model)), request, store.fingerprints)
    return validation_result(_measured(plan.measurement, store, arguments))


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
    """Measure how fast a finished *model* (an ONNX file, or the output folder of a build) loads and runs where it was
    built for, or on *ep* and *device*; anew with ``force_rebuild``. *config*: fields of ``perf``. *baseline*: whose
    load is measured beside, by default what a compiled one was made from. *output_dir*: where reports go. Raises as
    :func:`export_model` does.
    """
    from winml_dag.pipeline.host import this_host
    from winml_dag.pipeline.perf import PerfRequest, plan_perf

    perf = section_of(Perf, config or {}, "perf")
    request = PerfRequest(
        perf,
        input_data=None if perf.input_data is None else Path(perf.input_data).absolute(),
        ep=ep,
        device=device,
        baseline=None if baseline is None else Path(baseline),
        draws=output_dir is not None,
    )
    store = _store(arguments.get("cache_dir"))
    plan = plan_perf(find_subject(Path(model)), request, this_host(), store.fingerprints)
    return perf_result(_measured(plan.measurement, store, arguments, output_dir))


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
    """Evaluate a finished *model* (an ONNX file, or the output folder of a build) on *dataset*: a file, a folder, or a
    hub id. *task*: by default what it was built for. *reference*: evaluated beside it, by default the float model that
    its build left. *config*: fields of ``eval``. *output_dir*: where the report goes. Raises as :func:`export_model`.
    """
    from winml_dag.pipeline.evaluation import EvaluationRequest, eval_section, plan_evaluation

    said = {"task": task, "reference_path": reference, "ep": ep, "device": device}
    given = {name: os.fspath(value) for name, value in said.items() if value is not None}
    data = {} if dataset is None else {"path": os.fspath(dataset)}
    request = EvaluationRequest(eval_section(section_of(Eval, config or {}, "eval"), given, data), Path.cwd(), {})
    store = _store(arguments.get("cache_dir"))
    plan = plan_evaluation(find_subject(Path(model)), request, store.fingerprints)
    return eval_result(plan, _measured(plan.measurement, store, arguments, output_dir))


def _measured(
    planned: MeasurementGraph, store: LocalStore, arguments: FileArguments, folder: str | Path | None = None
) -> Measurement:
    done = carry_out(
        planned,
        store,
        rebuild=arguments.get("force_rebuild", False),
        folder=None if folder is None else Path(folder),
        overwrite=arguments.get("overwrite", False),
        observer=arguments.get("observer"),
    )
    if failed := done.failed:
        raise MeasuredError(f"{failed.node.id} failed: {failed.error}", advice=failed.advice, metrics=failed.metrics)
    return done


def _of_onnx(model: str | Path, output: str | Path | None, command: str, overrides: Overrides) -> Request:
    file = beside(Path(model), command) if output is None else Path(output)
    return Request(None, overrides, command=command, output_file=file)


def _command(request: Request, arguments: FileArguments) -> CommandResult:
    assert request.command is not None
    return command_result(_carry_out_one(request, arguments), request.command)


def _carry_out_one(request: Request, arguments: FileArguments) -> BuildResult:
    options = BuildOptions(rebuild=arguments.get("force_rebuild", False), overwrite=arguments.get("overwrite", False))
    return _carry_out(request, options, arguments.get("cache_dir"), arguments.get("observer"))


def _fields(config: WinMLQuantizationConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    return config.to_dict() if isinstance(config, WinMLQuantizationConfig) else config


def _build(output_dir: Path, model: dict[str, Any], arguments: HfArguments | OnnxArguments) -> BuildResult:
    what: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _HOW}
    request = Request(_recipe(arguments.get("config")), Overrides(**model, **what), output_dir)
    options = BuildOptions(
        arguments.get("jobs", 1), rebuild=arguments.get("force_rebuild", False), link=arguments.get("link", False)
    )
    return _carry_out(request, options, arguments.get("cache_dir"), arguments.get("observer"))


def _carry_out(
    request: Request, options: BuildOptions, cache_dir: str | Path | None, observer: Observer | None
) -> BuildResult:
    store = _store(cache_dir)
    planned = plan_request(request, store, download=True)
    result = build(planned, store, options, observer=observer)
    for view in result.stages:
        if view.result is not None and view.result.error:
            failed = view.result
            raise MeasuredError(f"{view.id} failed: {failed.error}", advice=failed.advice, metrics=failed.metrics)
    return result


def _store(cache_dir: str | Path | None) -> LocalStore:
    return LocalStore(default_cache_dir() if cache_dir is None else Path(cache_dir))


def _recipe(config: Config | None) -> Path | LoadedRecipe | None:
    if config is None or isinstance(config, str | Path):
        return None if config is None else Path(config)
    recipe = parse_recipe(json.dumps(config, default=os.fspath), "config", "json")
    return LoadedRecipe(Path.cwd() / "config", recipe, "json")
