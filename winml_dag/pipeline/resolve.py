"""Resolve a recipe and the options of a run into a build with nothing left to decide.

Everything that can be rejected before work begins is rejected here: an unknown precision, an execution provider that is
not installed, a missing model, settings that contradict each other. A stage's config gets exactly the fields that it
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from winml_dag.engine.keys import distribution_version
from winml_dag.engine.stage import Source
from winml_dag.ep.availability import is_at_hand, require_at_hand, resolve_target, what_is_missing
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import UsageError, WinmlDagError
from winml_dag.pipeline import sections
from winml_dag.pipeline.build_info import asked_for
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.compilation import compile_config, finalize_config, option_files, sdk_of, with_compile_settings
from winml_dag.pipeline.data import Data, data_of, find_calibration, find_validation_data, not_validated
from winml_dag.pipeline.outputdir import has_only_stages, output_folder
from winml_dag.pipeline.quantization import quant_for, quant_section, quantize_configs, refuse_other_quantize
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.settings import settings_of
from winml_dag.pipeline.sources import Known, OnnxFile
from winml_dag.pipeline.variant import (
    Build,
    CompositeBuild,
    Declared,
    Inputs,
    Model,
    OnlyDeclared,
    ResolveContext,
    SavePath,
    Skip,
    chosen,
    find_model,
    rewires_builtin,
    task_for,
    user_script,
    with_settings,
)
from winml_dag.recipe.load import LoadedRecipe
from winml_dag.recipe.precision import precision_name
from winml_dag.recipe.schema import Quant, Recipe
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE
from winml_dag.stages.compile import CompileConfig
from winml_dag.stages.export.architectures import Component, composite_of

T = TypeVar("T")

_DONE = {"compile": "compiled again", "optimize": "optimized", "quantize": "quantized", "calibrate": "calibrated"}


def build_of(
    request: Request, cache_dir: Path, known: Known | None = None, *, download: bool, needs_folder: bool = True
) -> Build | CompositeBuild | OnlyDeclared:
    """Return the build that *request* describes.

    Without *needs_folder* the build is only planned: without an output folder it uses one in the cache, and what only
    another machine has is reported, not an error. *known*: what other builds of the same plan have read.

    Raises:
        UsageError, InputError: as for :func:`resolve`; also when no output folder is named.
    """
    loaded = request.loaded()
    folder = output_folder(request, loaded, cache_dir, needs_folder)
    if loaded is not None and has_only_stages(loaded, request.overrides):
        build: Build | CompositeBuild | OnlyDeclared = _only_declared(loaded, folder)
    else:
        build = resolve_whole(loaded, request.overrides, folder, known, download=download, runs=needs_folder)
    asked = asked_for(loaded, request.overrides)
    return replace(build, summary=replace(build.summary, asked=asked, final_only=request.final_only))


def _own_stages(recipe: Recipe) -> int:
    return sum(not rewires_builtin(entry) for entry in recipe.stages.values())


def _only_declared(loaded: LoadedRecipe, output_dir: Path) -> OnlyDeclared:
    summary = BuildSummary(
        model_id=None,
        origin="stages",
        task=None,
        precision=None,
        execution_provider=None,
        ep=None,
        device=None,
        output_dir=output_dir,
        settings={},
        notices=(),
        declared=_own_stages(loaded.recipe),
    )
    declared = _declared(loaded)
    assert declared is not None
    return OnlyDeclared(summary, declared)


def _declared(loaded: LoadedRecipe | None) -> Declared | None:
    if loaded is None or not loaded.recipe.stages:
        return None
    path = loaded.path
    return Declared(loaded.recipe.stages, path.parent.resolve(), path, loaded.positions)


def resolve_whole(
    loaded: LoadedRecipe | None,
    overrides: Overrides,
    output_dir: Path,
    known: Known | None = None,
    *,
    download: bool = False,
    only: Container[str] = LINE,
    runs: bool = True,
) -> Build | CompositeBuild:
    """Return the build of *loaded* and *overrides*, with all components if it is a composite model.

    *known*: what other builds of the same plan have read.

    Raises:
        UsageError, InputError: as for :func:`resolve`.
    """
    # The section loader decides the model and its components.
    recipe = with_settings(_recipe(loaded), Overrides(settings={"loader": overrides.section("loader")}))
    context = ResolveContext(recipe, _base(loaded), loaded is not None, overrides)
    model = find_model(context, known or Known(), download=download)

    def part(component: Component | None) -> Build:
        return resolve(
            loaded, overrides, output_dir, download=download, only=only, runs=runs, model=model, component=component
        )

    asks = overrides.submodel or recipe.components or recipe.loader.module_path
    if not asks and composite_of(model.model_type) is None:
        return part(None)
    # Imported here: most models are exported in one piece.
    from winml_dag.pipeline.composite import components_for, composite_build

    components = components_for(context, model)
    if len(components) < 2:
        return part(components[0] if components else None)
    return composite_build(context, model, {component: part(component) for component in components})


def resolve(
    loaded: LoadedRecipe | None,
    overrides: Overrides,
    output_dir: Path,
    *,
    download: bool = False,
    only: Container[str] = LINE,
    runs: bool = True,
    model: Model | None = None,
    component: Component | None = None,
) -> Build:
    """Return the build of *loaded* and *overrides*.

    Prerequisites of stages that are not in *only* may be missing. Without *runs*, so may those of all other stages: the
    build runs on another machine, if at all. *model*: if it was found already. *component*: the one to build of a
    composite model.

    Raises:
        UsageError: for contradictions and missing prerequisites.
        InputError: for a model or data file that is missing or damaged; *download* allows fetching a model from the
            hub.
    """
    recipe = _recipe(loaded)
    if component is not None:
        from winml_dag.pipeline.composite import recipe_of

        recipe, overrides = recipe_of(recipe, component), replace(overrides, task=None)
    recipe = with_settings(recipe, overrides)
    context = ResolveContext(recipe, _base(loaded), loaded is not None, overrides)
    sections.refuse_unused(recipe)

    model = model or find_model(context, Known(), download=download)
    target = _target(context, model.onnx)
    context = replace(context, recipe=with_compile_settings(recipe, overrides.section("compile"), target))
    task = task_for(context, model)
    onnx = model.onnx
    quant = quant_for(context, target, onnx)
    refuse_other_quantize(context, quant, onnx)
    would_compile = _would_compile(context, target, onnx)
    compile_ = would_compile if "compile" in only else Skip("this command does not compile")
    standard_only = _takes_standard_only(target, quant, would_compile)
    optimize = sections.optimize_config(context, onnx, quant, standard_only=standard_only)
    if onnx is not None and onnx.kind == artifact_types.COMPILED_MODEL:
        stages = {"compile": compile_, "optimize": optimize, "quantize": quant, "calibrate": quant}
        _refuse_stages(onnx, {name: config for name, config in stages.items() if name in only})
    lacks = _Lacks(refuse=runs)
    if not isinstance(compile_, Skip):
        otherwise = "" if overrides.compile else "Or leave compiling to such a machine: --no-compile."
        lacks.look(lambda: require_at_hand(target, otherwise=otherwise))
    if onnx is None:
        lacks.look(_require_exporter)
    sdk = lacks.look(lambda: sdk_of(context, compile_))
    data = _unquantized_data(context) if isinstance(quant, Skip) and "validate" in only else chosen(quant)
    calibration = Data() if data is None else find_calibration(context, model, data, task, download=download)
    as_given = onnx is not None and onnx.kind != artifact_types.FLOAT_MODEL and isinstance(quant, Skip)
    precision = "as it is" if as_given else precision_name(chosen(quant))
    given = Data()
    if "validate" in only:
        given = find_validation_data(context, model, chosen(quant), task, download=download)
    files = None if isinstance(compile_, Skip) else option_files(context, target)
    source = artifact_types.FLOAT_MODEL if onnx is None else onnx.kind
    validate = sections.validate_config(
        context, target, precision, quant, compile_, calibration, given, model_kind=source, task=task
    )
    quantize = quantize_configs(quant, target)
    analyze = sections.analyze_config(
        context, target, optimize, quantize, compile_=would_compile, standard_only=standard_only
    )
    search = sections.search_of(context, target, analyze)
    normalization = None
    if onnx is not None:
        # Imported here: only builds from an ONNX model need it.
        from winml_dag.pipeline.normalization import normalization_for, requested_shapes

        normalization = normalization_for(
            onnx,
            requested_shapes(context, onnx, whole=only is LINE),
            target,
            compiles=not isinstance(would_compile, Skip),
            quantizes=not isinstance(quant, Skip) and quant.mode in ("static", "dynamic"),
        )
    of_flags: Mapping[str, object] = {
        "quant": quant,
        "optimize": optimize,
        "analyze": analyze,
        "compile": compile_,
        "validate": validate,
    }
    build = Build(
        summary=BuildSummary(
            model_id=model.name,
            origin="hf" if onnx is None else "onnx",
            task=task,
            precision=precision,
            execution_provider=target.ep.name,
            ep=target.ep.alias,
            device=target.device,
            output_dir=output_dir,
            settings={},
            notices=(
                *(normalization.notices if normalization else ()),
                *sections.notices(quant, calibration),
                *lacks.notices,
                *(() if lacks.found else _missing(target)),
                *sections.search_notices(target, analyze, search),
                *(() if only is not LINE else _without_effect(context, target, of_flags)),
            ),
            declared=_own_stages(recipe),
        ),
        lacks=tuple(lacks.found),
        target=target,
        inputs=_inputs(context, model, calibration, given, files),
        export=Skip("the model is ONNX already") if onnx else sections.export_config(context, task, model.model_type),
        normalize=normalization.config if normalization else None,
        optimize=optimize,
        analyze=analyze,
        search=search,
        calibrate=sections.calibrate_config(context, quant, validate, calibration),
        quantize=quantize,
        compile=compile_,
        sdk=sdk,
        validate=validate,
        finalize=finalize_config(context, would_compile),
        save_ranges=_save_ranges(context, calibration),
        declared=_declared(loaded),
    )
    settings = settings_of(build, context, model, chosen(quant), data)
    return replace(build, summary=replace(build.summary, settings=settings))


def _without_effect(context: ResolveContext, target: Target, of_flags: Mapping[str, object]) -> Iterator[str]:
    """Yield a notice for each option of this run that is about a stage that is skipped."""
    overrides = context.overrides
    for flag, config in of_flags.items():
        if not isinstance(config, Skip):
            continue
        section = {"optimize": "optim"}.get(flag, flag)
        fields = () if flag == "compile" else sorted(overrides.section(section))
        if getattr(overrides, flag):
            yield f"--{flag} has no effect: {config.reason}."
        elif fields:
            yield f"{section}.{fields[0]} has no effect: {config.reason}."
        elif flag == "compile" and overrides.ep and target.ep.makes_ep_context and overrides.compile is None:
            yield f"--ep {overrides.ep} compiles nothing: {config.reason}. To compile, add --compile."


def _recipe(loaded: LoadedRecipe | None) -> Recipe:
    return Recipe() if loaded is None else loaded.recipe


def _base(loaded: LoadedRecipe | None) -> Path:
    """Return the folder that paths are relative to."""
    return Path.cwd() if loaded is None else loaded.path.parent


class _Lacks:
    """What this machine lacks for a build: an error if it is to run, a notice if it is only planned."""

    def __init__(self, *, refuse: bool) -> None:
        self._refuse = refuse
        self.found: list[str] = []

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(f"This can be planned here, but not run: {lack}" for lack in self.found)

    def look(self, find: Callable[[], T]) -> T | None:
        try:
            return find()
        except WinmlDagError as error:
            if self._refuse:
                raise
            self.found.append(str(error))
            return None


def _would_compile(context: ResolveContext, target: Target, onnx: OnnxFile | None) -> CompileConfig | Skip:
    if onnx is not None and onnx.kind == artifact_types.COMPILED_MODEL and not context.overrides.compile:
        return Skip(f"{onnx.path.name} is compiled already")
    return compile_config(context, target)


def _refuse_stages(compiled: OnnxFile, stages: Mapping[str, object]) -> None:
    """Raise UsageError when one of *stages*, each with its config, is not skipped: it would change the model."""
    stage = next((name for name, config in stages.items() if not isinstance(config, Skip)), None)
    if stage is not None:
        raise UsageError(
            f"{compiled.path} is a compiled model: its EPContext nodes hold the binary of {compiled.target.ep.name},"
            f" which cannot be {_DONE[stage]}.",
            advice="Use the ONNX model that it was compiled from.",
        )


def _takes_standard_only(target: Target, quant: Quant | Skip, would_compile: object) -> bool:
    """Whether optimize has to use only standard ONNX operators.

    Other operators break ahead-of-time compilation into partitions, and static quantization leaves them in float. Which
    of onnxruntime's own operators a provider supports is only certain for its CPU.
    """
    quantizes = not isinstance(quant, Skip) and quant.mode == "static"
    return quantizes or not isinstance(would_compile, Skip) or target.ep != CPU


def _missing(target: Target) -> Iterator[str]:
    """Yield a notice for a model whose provider only another machine has."""
    if not is_at_hand(target.ep):
        why = what_is_missing(target).removesuffix(".")
        yield f"{why}, so the model was not run on {target.ep.name if target.is_open else 'it'}."


def _target(context: ResolveContext, onnx: OnnxFile | None) -> Target:
    overrides, recipe = context.overrides, context.recipe
    ep, compiled = recipe.ep, recipe.compile
    device: str | None = recipe.device
    if overrides.ep or overrides.device:
        ep, device = overrides.ep, overrides.device
    elif compiled is not None:
        named = compiled.ep_device
        ep = ep or compiled.execution_provider or (named.ep if named else None)
        device = device if device != "auto" else compiled.device
        device = (named.device or device) if named and device == "auto" else device
    return resolve_target(ep, device) if onnx is None else onnx.target_named(ep, device, onnx.target)


def _require_exporter() -> None:
    for name in ("torch", "transformers"):
        if distribution_version(name) is None:
            raise UsageError(
                f"Exporting a PyTorch model needs {name}, which is not installed.", advice="pip install winml_dag[hf]"
            )


def _unquantized_data(context: ResolveContext) -> Quant | None:
    """Return the recipe's data settings for validation, for a build that does not quantize."""
    unused = not_validated(context) is not None or context.recipe.validation.input_data is not None
    return None if unused else data_of(quant_section(context))


def _inputs(context: ResolveContext, model: Model, calibration: Data, validation: Data, files: Source | None) -> Inputs:
    return Inputs(
        model=_model_source(context, model),
        script=user_script(context, model),
        calibration_data=calibration.data,
        validation_data=validation.data,
        processor=calibration.processor,
        # Both are of the same model, and a graph has each source once.
        validation_processor=validation.processor and (calibration.processor or validation.processor),
        ranges=calibration.ranges,
        option_files=files,
        looked_at=(*model.looked_at, *calibration.looked_at, *validation.looked_at),
    )


def _model_source(context: ResolveContext, model: Model) -> Source | None:
    if model.onnx is not None:
        return model.onnx.source()
    return None if model.folder is None else model.folder.model_source(code=context.trusts_code)


def _save_ranges(context: ResolveContext, calibration: Data) -> SavePath | None:
    path = calibration.save_path
    return None if path is None else SavePath(context.base.resolve(), path)
