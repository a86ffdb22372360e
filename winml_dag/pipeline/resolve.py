"""Resolve a recipe and the options of a run into a build with nothing left to decide.

Everything that can be rejected before work begins is rejected here: an unknown precision, an execution provider that is
not installed, a missing model, settings that contradict each other. :mod:`winml_dag.pipeline.decisions` has what is
decided, and :mod:`winml_dag.pipeline.stageconfigs` the config of each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from winml_dag.engine.stage import Skip, Source, SourceFile
from winml_dag.ep.availability import is_at_hand, require_at_hand, what_is_missing
from winml_dag.ep.registry import CPU, Target
from winml_dag.errors import InputError, RecipeError, UsageError, WinmlDagError
from winml_dag.installed import distribution_version
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.decisions import Decisions, ResolveContext, option_files, sdk_of
from winml_dag.pipeline.layout import has_only_stages, output_folder
from winml_dag.pipeline.model import Known, Model, find_model
from winml_dag.pipeline.plan import Build, Declared, SavePath, Search, rewires_builtin
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.settings import settings_of
from winml_dag.pipeline.stageconfigs import data_notices, search_notices
from winml_dag.recipe.fields import resolve_path
from winml_dag.recipe.schema import Recipe
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE

if TYPE_CHECKING:
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.stages.export.architectures import Component

T = TypeVar("T")

_DONE = {"compile": "compiled again", "optimize": "optimized", "quantize": "quantized", "calibrate": "calibrated"}


def build_of(
    request: Request,
    cache_dir: Path,
    known: Known | None = None,
    *,
    download: bool,
    needs_folder: bool = True,
    describes: bool = True,
) -> Build:
    """Return the build that *request* describes.

    Without *needs_folder* the build is only planned: without an output folder it uses one in the cache, and what only
    another machine has is reported, not an error. *known*: what other builds of the same plan have read. Without
    *describes* its summary lacks what only files of a finished build say.

    Raises:
        UsageError, InputError: as for :func:`resolve`; also when no output folder is named.
    """
    loaded = request.loaded()
    folder = output_folder(request, loaded, cache_dir, needs_folder)
    if loaded is not None and has_only_stages(loaded, request.overrides):
        build = _only_declared(loaded, folder)
    else:
        context = ResolveContext.of(
            loaded, request.overrides, folder, download=download, runs=needs_folder, describes=describes
        )
        build = resolve(context, known)
    summary = replace(build.summary, final_only=request.final_only)
    if describes:
        # Imported here, as below: a plan that is only looked at needs neither.
        from winml_dag.pipeline.build_info import asked_for

        summary = replace(summary, asked=asked_for(loaded, request.overrides))
    return replace(build, summary=summary)


def _own_stages(recipe: Recipe) -> int:
    return sum(not rewires_builtin(entry) for entry in recipe.stages.values())


def _only_declared(loaded: LoadedRecipe, output_dir: Path) -> Build:
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
    skip = Skip("the recipe names no model, so none of our stages runs", listed=False)
    return Build(summary, Target(CPU, "cpu"), {}, dict.fromkeys(LINE, skip), Search(), declared=_declared(loaded))


def _declared(loaded: LoadedRecipe | None) -> Declared | None:
    if loaded is None or not loaded.recipe.stages:
        return None
    path = loaded.path
    return Declared(loaded.recipe.stages, path.parent.resolve(), path, loaded.positions)


def resolve(context: ResolveContext, known: Known | None = None) -> Build:
    """Return the build of *context*, with all components if it is a composite model.

    *known*: what other builds of the same plan have read.

    Raises:
        UsageError: for contradictions and missing prerequisites.
        InputError: for a model or data file that is missing or damaged.
    """
    loader_known = context.with_loader()
    recipe = loader_known.recipe
    model = find_model(loader_known, known or Known())
    asks = context.overrides.submodel or recipe.components or recipe.loader.module_path
    if not asks and model.onnx is not None:
        return resolve_one(context, model)
    # Imported here: a model that is ONNX has no components.
    from winml_dag.pipeline.composite import components_for, composite_build

    components = components_for(loader_known, model)
    if len(components) < 2:
        return resolve_one(context, model, components[0] if components else None)
    whole = replace(context, describes=True)
    parts = {component: resolve_one(whole, model, component) for component in components}
    return composite_build(loader_known, model, parts)


def resolve_one(context: ResolveContext, model: Model, component: Component | None = None) -> Build:
    """Return the build of *model*, or of one *component* of it."""
    if component is not None:
        from winml_dag.pipeline.composite import recipe_of

        recipe, overrides = recipe_of(context.recipe, component), replace(context.overrides, task=None)
        context = replace(context, recipe=recipe, overrides=overrides)
    decided = Decisions(context.with_settings(), model)
    if decided.model_kind == artifact_types.COMPILED_MODEL:
        _refuse_stages(decided)
    lacks = _Lacks(refuse=context.runs)
    if decided.compiled is not None:
        otherwise = "" if context.overrides.compile else "Or leave compiling to such a machine: --no-compile."
        lacks.look(lambda: require_at_hand(decided.target, otherwise=otherwise))
    if decided.onnx is None:
        lacks.look(_require_exporter)
    sdk = lacks.look(lambda: sdk_of(decided.context, decided.compiled))
    configs = {stage: decided.config(stage) for stage in LINE}
    if not context.wants("compile"):
        configs["compile"] = Skip("this command does not compile")
    target = decided.target
    save_path = decided.calibration.save_path
    return Build(
        summary=BuildSummary(
            model_id=model.name,
            origin="hf" if model.onnx is None else "onnx",
            task=decided.task,
            precision=decided.precision,
            execution_provider=target.ep.name,
            ep=target.ep.alias,
            device=target.device,
            output_dir=context.output_dir,
            settings=settings_of(decided) if context.describes else {},
            notices=(
                *decided.notices,
                *data_notices(decided),
                *lacks.notices,
                *(() if lacks.found else _missing(target)),
                *search_notices(decided),
                *(_without_effect(decided, configs) if context.only is None else ()),
            ),
            declared=_own_stages(context.recipe),
        ),
        target=target,
        sources=_sources(decided),
        looked_at=(*model.looked_at, *decided.calibration.looked_at, *decided.validation.looked_at),
        configs=configs,
        search=decided.search,
        save_ranges=None if save_path is None else SavePath(context.base.resolve(), save_path),
        declared=_declared(context.loaded),
        sdk=sdk,
        lacks=tuple(lacks.found),
    )


def _without_effect(decided: Decisions, configs: dict[str, Any]) -> Iterator[str]:
    """Yield a notice for each option of this run that is about a stage that is skipped."""
    overrides, target = decided.overrides, decided.target
    for flag, stage, section in (
        ("quant", "quantize", "quant"),
        ("optimize", "optimize", "optim"),
        ("analyze", "analyze", ""),
        ("compile", "compile", ""),
        ("validate", "validate", "validate"),
    ):
        config, fields = configs[stage], sorted(overrides.section(section))
        if not isinstance(config, Skip):
            continue
        if getattr(overrides, flag):
            yield f"--{flag} has no effect: {config.reason}."
        elif fields:
            yield f"{section}.{fields[0]} has no effect: {config.reason}."
        elif flag == "compile" and overrides.ep and target.ep.makes_ep_context and overrides.compile is None:
            yield f"--ep {overrides.ep} compiles nothing: {config.reason}. To compile, add --compile."


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


def _refuse_stages(decided: Decisions) -> None:
    """Raise UsageError when a wanted stage would change the compiled model."""
    assert decided.onnx is not None
    for stage, done in _DONE.items():
        changes = decided.runs(stage) if stage in ("compile", "optimize") else not isinstance(decided.quant, Skip)
        if changes and decided.context.wants(stage):
            raise UsageError(
                f"{decided.onnx.path} is a compiled model: its EPContext nodes hold the binary of"
                f" {decided.onnx.target.ep.name}, which cannot be {done}.",
                advice="Use the ONNX model that it was compiled from.",
            )


def _missing(target: Target) -> Iterator[str]:
    """Yield a notice for a model whose provider only another machine has."""
    if not is_at_hand(target.ep):
        why = what_is_missing(target).removesuffix(".")
        yield f"{why}, so the model was not run on {target.ep.name if target.is_open else 'it'}."


def _require_exporter() -> None:
    for name in ("torch", "transformers"):
        if distribution_version(name) is None:
            raise UsageError(
                f"Exporting a PyTorch model needs {name}, which is not installed.", advice="pip install winml_dag[hf]"
            )


def _sources(decided: Decisions) -> dict[str, Source]:
    context, model, calibration, validation = decided.context, decided.model, decided.calibration, decided.validation
    source: Source | None = None
    if model.onnx is not None:
        source = model.onnx.source()
    elif model.folder is not None:
        source = model.folder.model_source(code=context.trusts_code)
    found = {
        "model": source,
        "script": _user_script(context, model),
        "data": calibration.data,
        "input_data": validation.data,
        "processor": calibration.processor,
        # Both are of the same model, and a graph has each source once.
        "input_processor": validation.processor and (calibration.processor or validation.processor),
        "ranges": calibration.ranges,
        "option_files": None if decided.compiled is None else option_files(context, decided.target),
    }
    return {slot: source for slot, source in found.items() if source is not None}


def _user_script(context: ResolveContext, model: Model) -> Source | None:
    """Return the Python file that makes the model, if the recipe names one.

    Raises:
        InputError: when it does not exist.
        RecipeError: when the model is already ONNX.
    """
    written = context.recipe.loader.user_script
    if written is None:
        return None
    path = resolve_path(context.base, written)
    if model.onnx is not None:
        raise RecipeError(
            f"loader.user_script is {written!r}, but the model is ONNX already, so nothing is to be made."
        )
    if path.suffix != ".py" or not path.is_file():
        what = "is not a Python file" if path.exists() else "does not exist"
        raise InputError(f"loader.user_script: {path} {what}.", advice="Paths are relative to the recipe.")
    return Source("user script", artifact_types.USER_SCRIPT, (SourceFile(path.name, path),))
