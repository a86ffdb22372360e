"""The recipe that ``config`` writes: a request with every default resolved and all tensors listed.

It matches ``winml_build_config.json`` of a build of the request, as far as that is determined before anything runs:
what analyze discovers is not. So building it gives the same result as the request.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue, mapping
from winml_dag.engine.execute import Job, LocalExecutor
from winml_dag.engine.stage import Node, Source, Stage, config_json
from winml_dag.errors import StageError, UsageError
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.plan import Build
from winml_dag.pipeline.quantization import reads
from winml_dag.pipeline.request import Request
from winml_dag.pipeline.resolve import resolve
from winml_dag.recipe.schema import Recipe
from winml_dag.stages.export import (
    CAPTURE,
    MODEL_SOURCE,
    SCRIPT_SOURCE,
    SIGNATURE,
    CaptureConfig,
    ExportFields,
    LoaderFields,
    SignatureConfig,
)

# How the search of analyze proceeds is not part of the result, so the settings of a build omit it.
_OF_ANALYZE = ("auto", "max_optim_iterations", "allow_unsupported_nodes")


@dataclass(frozen=True)
class FrozenRecipe:
    """``recipes``: the one recipe, or one for each module; ``notices``: what to know about them, a sentence each.

    ``needs_model``: whether it is for all models of an architecture, so that the caller of build has to name one.
    """

    recipes: tuple[JsonObject, ...]
    notices: tuple[str, ...]
    model: str
    target: str
    needs_model: bool = False


def frozen_recipe(request: Request, folder: Path, *, module: str | None = None) -> FrozenRecipe:
    """Return *request* as a recipe in *folder*; with *module*, as recipes for the modules of that class.

    Raises:
        UsageError, InputError: as for a build of the request, but the target need not be installed.
        StageError: when there are no modules of the class, or the model cannot be loaded to find them.
    """
    loaded = request.loaded()
    base = Recipe() if loaded is None else loaded.recipe
    overrides = request.overrides
    nameless = _is_nameless(request, base)
    if nameless and module is None:
        overrides = replace(overrides, random_weights=True)
    build = resolve(ResolveContext.of(loaded, overrides, folder, download=True, runs=False))
    export = build.chosen("export")
    settings = {
        **build.summary.settings,
        "auto": base.auto if request.overrides.analyze is None else request.overrides.analyze,
        **{name: getattr(base, name) for name in _OF_ANALYZE[1:] if name in base.model_fields_set},
    }
    if request.overrides.max_optim_iterations is not None:
        settings["max_optim_iterations"] = request.overrides.max_optim_iterations
    if request.overrides.allow_unsupported_nodes:
        settings["allow_unsupported_nodes"] = True
    model_type = None if export is None else export.loader.model_type
    settings["loader"] = {
        **({} if model_type is None else {"model_type": model_type}),
        **{
            name: value
            for name, value in mapping(settings.get("loader")).items()
            if name != "random_weights" or not nameless
        },
    }
    summary = build.summary
    model = f"Any {_model_type(request, base)}" if nameless else str(summary.model_id)
    frozen = FrozenRecipe((settings,), summary.notices, model, f"{summary.ep} on the {summary.device}", nameless)
    if module is not None:
        return _modules(frozen, settings, build, module)
    return _with_tensors(frozen, settings, build)


def _is_nameless(request: Request, recipe: Recipe) -> bool:
    """Whether it is for all models of an architecture: the caller of build names one, or asks for random weights."""
    overrides, loader = request.overrides, recipe.loader
    named = overrides.model or overrides.onnx or recipe.model or loader.path or loader.user_script
    random = overrides.random_weights or loader.random_weights is not None
    return named is None and _model_type(request, recipe) is not None and not random


def _model_type(request: Request, recipe: Recipe) -> JsonValue:
    return request.overrides.section("loader").get("model_type") or recipe.loader.model_type


def _modules(frozen: FrozenRecipe, settings: JsonObject, build: Build, module: str) -> FrozenRecipe:
    export = build.chosen("export")
    if build.parts or export is None:
        raise UsageError(
            f"--module {module} is for modules of one PyTorch model that is exported.",
            advice="Name one component with --submodel, or give the PyTorch model.",
        )
    recipes, left_out = module_recipes(
        settings, export.loader, export.export, build.sources.get("model"), module, script=build.sources.get("script")
    )
    notices = (f"There is no recipe for the module {path}: {why}" for path, why in left_out.items())
    return replace(frozen, recipes=recipes, notices=(*frozen.notices, *notices))


def _with_tensors(frozen: FrozenRecipe, settings: JsonObject, build: Build) -> FrozenRecipe:
    """Return *frozen* with the inputs and outputs of the exported model, or a notice if they cannot be inferred."""
    notices: list[str] = []
    written = dict(settings)
    export = build.chosen("export")
    if build.parts:
        components = dict(mapping(settings.get("components")))
        for name, part in build.parts.items():
            component = export.components[name]
            loader = replace(export.loader, model_class=component.model_class, task=component.task)
            config = SignatureConfig(loader, component.export, component)
            components[name] = _spelled_out(mapping(components.get(name)), config, part.sources.get("model"), notices)
        written["components"] = components
    elif export and "script" not in build.sources and export.loader.module_path is None:
        config = SignatureConfig(export.loader, export.export)
        written = {**written, **_spelled_out(settings, config, build.sources.get("model"), notices)}
    return replace(frozen, recipes=(_readable(written),), notices=(*frozen.notices, *notices))


def _readable(settings: JsonObject) -> JsonObject:
    """Return *settings* without empty lists and maps in sections, and without fields that a mode does not read."""
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
        metrics = run_ephemeral_stage(SIGNATURE, config_json(config), {MODEL_SOURCE: model})
    except StageError as error:
        notices.append(f"The tensors are not spelled out: {error}")
        return settings
    tensors = {name: value for name, value in metrics.items() if name in ("input_tensors", "output_tensors") and value}
    # The tensors' shapes already have the sizes.
    export = {name: value for name, value in mapping(settings.get("export")).items() if name != "shape_config"}
    return {**settings, "export": {**export, "batch_size": config.export.batch_size, **tensors}}


# Sections of a model's recipe that do not apply to a module, whose inputs are not the model's data.
_OF_THE_MODEL = ("eval", "components", "output_dir")
_OF_ITS_TENSORS = ("dynamic_axes", "batch_size", "shape_config")
_OF_ITS_DATA = (
    "task", "model_id", "model_type", "dataset_name", "dataset_subset", "dataset_split", "columns_mapping",
    "calibration_data", "calibration_load_path", "calibration_save_path", "save_calibration", "node_overrides",
    "nodes_to_exclude",
)  # fmt: skip


def module_recipes(
    settings: JsonObject,
    loader: LoaderFields,
    export: ExportFields,
    model: Source | None,
    module_class: str,
    *,
    script: Source | None = None,
) -> tuple[tuple[JsonObject, ...], JsonObject]:
    """Return a recipe for each module of *module_class*, with the inputs that the module gets when the model runs.

    They are in the order in which the model calls them. Also returns, by path, why other modules have none.

    Args:
        settings: the frozen recipe of the whole model.
        loader, export: how that model is loaded and called; *model* and *script* are its sources.

    Raises:
        StageError: when the model cannot be loaded or called, or has no such modules.
    """
    config = config_json(CaptureConfig(loader, export, module_class))
    metrics = run_ephemeral_stage(CAPTURE, config, {MODEL_SOURCE: model, SCRIPT_SOURCE: script})
    modules = metrics.get("modules")
    found = [each for each in modules if isinstance(each, Mapping)] if isinstance(modules, list | tuple) else []
    recipes = tuple(_recipe(settings, loader, module_class, module) for module in found)
    return recipes, mapping(metrics.get("left_out"))


def _recipe(settings: JsonObject, of_model: LoaderFields, module_class: str, module: JsonObject) -> JsonObject:
    whole = {name: value for name, value in settings.items() if name not in _OF_THE_MODEL}
    loader = {
        **mapping(settings.get("loader")),
        "model_type": of_model.model_type,  # winml-cli requires it
        "model_class": module_class,
        "module_path": module["path"],
    }
    export: dict[str, JsonValue] = {
        **{name: value for name, value in mapping(settings.get("export")).items() if name not in _OF_ITS_TENSORS},
        "input_tensors": module["input_tensors"],
        "output_tensors": [{"name": name} for name in _texts(module["outputs"])],
    }
    if module["arguments"]:
        export["module_arguments"] = module["arguments"]
    quant = settings.get("quant")
    if isinstance(quant, Mapping):
        whole["quant"] = {name: value for name, value in quant.items() if name not in _OF_ITS_DATA}
    return {**whole, "loader": loader, "export": export}


def _texts(value: JsonValue) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


# A stage outside of any build: it runs to report something about a model, and its files are discarded. It has its own
# process, since it may run the model's code, and to release its memory.


def run_ephemeral_stage(stage: Stage, config: JsonObject, sources: Mapping[str, Source | None]) -> JsonObject:
    """Return the metrics of *stage*; it finds the folders of *sources* in its environment, under their names.

    Raises:
        StageError: when it fails.
    """
    folders = {name: str(_folder_of(source)) for name, source in sources.items() if source is not None}
    node = Node(stage.name, stage, config, {}, machine_facts=folders)
    with tempfile.TemporaryDirectory(prefix=f"winml-dag-{stage.name}-", ignore_cleanup_errors=True) as name:
        executor = LocalExecutor()
        try:
            outcome = executor.run(Job(node, Path(name), stage.timeout_seconds))
        finally:
            executor.close()
    if outcome.error:
        raise StageError(outcome.error, advice=outcome.advice)
    return outcome.metrics


def _folder_of(source: Source) -> Path:
    """Return the folder that contains all files of *source* under their names."""
    first = source.files[0]
    # Do not follow links: a hub snapshot links to files with other names elsewhere.
    return first.path.absolute().parents[len(Path(first.name).parts) - 1]
