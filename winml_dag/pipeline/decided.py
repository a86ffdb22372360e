"""The recipe that ``config`` writes: what a request means, with everything decided and the tensors spelled out.

It is what a build of the request would put into ``winml_build_config.json``, as far as that is known before anything
runs: what analyze discovers is not. So a build from it is the build of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.config import config_json
from winml_dag.engine.stage import Source
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.answer import answer_of
from winml_dag.pipeline.modulerecipes import module_recipes
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.resolve import resolve_whole
from winml_dag.pipeline.unread import reads
from winml_dag.pipeline.variant import Build, CompositeBuild, Skip
from winml_dag.recipe.schema import Recipe
from winml_dag.stages.export import MODEL, SIGNATURE, ExportConfig, SignatureConfig
from winml_dag.stages.export.tasks import task_named

# How analyze goes on is no part of what is built, so the settings of a build leave it out.
_OF_ANALYZE = ("auto", "max_optim_iterations", "allow_unsupported_nodes")


@dataclass(frozen=True)
class DecidedRecipe:
    """``recipes``: the one recipe, or one for each module; ``notices``: what to know of them, a sentence each.

    ``needs_model``: whether it is for all models of an architecture, so that who builds says which.
    """

    recipes: tuple[JsonObject, ...]
    notices: tuple[str, ...]
    model: str
    target: str
    needs_model: bool = False


def decided_recipe(request: Request, folder: Path, *, module: str | None = None) -> DecidedRecipe:
    """What *request* means, as a recipe that lies in *folder*; with *module*, recipes for the modules of that class.

    Raises:
        UsageError, InputError: as for a build of the request, but nothing has to be installed to run it.
        StageError: when there are no modules of the class, or the model cannot be loaded to find them.
    """
    loaded = request.loaded()
    base = Recipe() if loaded is None else loaded.recipe
    overrides = request.overrides
    nameless = _is_nameless(request, base)
    if nameless and module is None:
        overrides = replace(overrides, random_weights=True)
    build = resolve_whole(loaded, overrides, folder, download=True, runs=False)
    _refuse_task(build)
    settings = {
        **build.summary.settings,
        "auto": base.auto if request.overrides.analyze is None else request.overrides.analyze,
        **{name: getattr(base, name) for name in _OF_ANALYZE[1:] if name in base.model_fields_set},
    }
    if request.overrides.max_optim_iterations is not None:
        settings["max_optim_iterations"] = request.overrides.max_optim_iterations
    if request.overrides.allow_unsupported_nodes:
        settings["allow_unsupported_nodes"] = True
    model_type = None if isinstance(build.export, Skip) else build.export.loader.model_type
    settings["loader"] = {
        **({} if model_type is None else {"model_type": model_type}),
        **{name: value for name, value in _section(settings, "loader") if name != "random_weights" or not nameless},
    }
    summary = build.summary
    model = f"Any {_model_type(request, base)}" if nameless else str(summary.model_id)
    told = DecidedRecipe((settings,), summary.notices, model, f"{summary.ep} on the {summary.device}", nameless)
    if module is not None:
        return _modules(told, settings, build, module)
    return _with_tensors(told, settings, build)


def _refuse_task(build: Build | CompositeBuild) -> None:
    """Raise UsageError for a task that there is not: a recipe with it would be no recipe that can be built."""
    if not isinstance(build.export, Skip):
        try:
            task_named(build.export.loader.task)
        except StageError as error:
            raise UsageError(error.message, advice=error.advice) from error


def _is_nameless(request: Request, recipe: Recipe) -> bool:
    """Whether it is for all models of an architecture: then who builds says which, or that weights are made up."""
    overrides, loader = request.overrides, recipe.loader
    named = overrides.model or overrides.onnx or recipe.model or loader.path or loader.user_script
    random = overrides.random_weights or loader.random_weights is not None
    return named is None and _model_type(request, recipe) is not None and not random


def _model_type(request: Request, recipe: Recipe) -> JsonValue:
    return (request.overrides.settings or {}).get("loader", {}).get("model_type") or recipe.loader.model_type


def _modules(told: DecidedRecipe, settings: JsonObject, build: Build | CompositeBuild, module: str) -> DecidedRecipe:
    if isinstance(build, CompositeBuild) or not isinstance(build.export, ExportConfig):
        raise UsageError(
            f"--module {module} is for modules of one PyTorch model that is exported.",
            advice="Name one component with --submodel, or give the PyTorch model.",
        )
    found = module_recipes(
        settings, build.export.loader, build.export.export, build.inputs.model, module, script=build.inputs.script
    )
    left_out = (f"There is no recipe for the module {path}: {why}" for path, why in found.left_out.items())
    return replace(told, recipes=found.recipes, notices=(*told.notices, *left_out))


def _with_tensors(told: DecidedRecipe, settings: JsonObject, build: Build | CompositeBuild) -> DecidedRecipe:
    """*told* with the inputs and outputs of the exported model; where they cannot be told, with a notice."""
    notices: list[str] = []
    written = dict(settings)
    if isinstance(build, CompositeBuild):
        components = dict(_section(settings, "components"))
        for name, part in build.parts.items():
            own = components.get(name)
            own = own if isinstance(own, Mapping) else {}
            asked = build.export.components[name]
            loader = replace(build.export.loader, model_class=asked.model_class, task=asked.task)
            config = SignatureConfig(loader, asked.export, asked)
            components[name] = _spelled_out(own, config, part.inputs.model, notices)
        written["components"] = components
    elif not isinstance(build.export, Skip) and build.inputs.script is None and build.export.loader.module_path is None:
        config = SignatureConfig(build.export.loader, build.export.export)
        written = {**written, **_spelled_out(settings, config, build.inputs.model, notices)}
    return replace(told, recipes=(_readable(written),), notices=(*told.notices, *notices))


def _readable(settings: JsonObject) -> JsonObject:
    """*settings* without what says nothing: empty lists and maps in sections, and what a mode does not read."""
    found: dict[str, JsonValue] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and name != "optim":
            mode = str(value.get("mode", ""))
            found[name] = {
                field: each
                for field, each in value.items()
                if each not in ({}, [], ()) and (name != "quant" or reads(mode, field))
            }
            if name == "components":
                found[name] = {each: _readable(own) for each, own in value.items() if isinstance(own, Mapping)}
        else:
            found[name] = value
    return found


def _spelled_out(settings: JsonObject, config: SignatureConfig, model: Source | None, notices: list[str]) -> JsonObject:
    try:
        told = answer_of(SIGNATURE, config_json(config), {MODEL: model})
    except StageError as error:
        notices.append(f"The tensors are not spelled out: {error}")
        return settings
    tensors = {name: value for name, value in told.items() if name in ("input_tensors", "output_tensors") and value}
    # Their shapes have the sizes by now.
    export = {name: value for name, value in _section(settings, "export") if name != "shape_config"}
    return {**settings, "export": {**export, "batch_size": config.export.batch_size, **tensors}}


def _section(settings: JsonObject, name: str) -> list[tuple[str, JsonValue]]:
    value = settings.get(name)
    return list(value.items()) if isinstance(value, Mapping) else []
