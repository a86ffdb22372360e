"""A model of several components (an encoder and a decoder, two towers) as one build.

Each component is resolved as a build of its own, with the recipe's settings for it. All components then share one
export and one output folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from winml_dag.canonical import JsonObject, JsonValue, mapping
from winml_dag.engine.stage import Skip
from winml_dag.errors import RecipeError, known_instead
from winml_dag.pipeline.buildgraph import prefixed
from winml_dag.pipeline.decisions import ResolveContext
from winml_dag.pipeline.model import Model
from winml_dag.pipeline.plan import Build
from winml_dag.recipe.fields import Section
from winml_dag.recipe.schema import Compile, Export, Quant, Recipe, Validate
from winml_dag.recipe.schema import Component as Own
from winml_dag.stages.export import ComponentFields, ComponentsConfig, ExportConfig
from winml_dag.stages.export.architectures import Component, chosen_components, component_named, composite_of
from winml_dag.stages.finalize import MODEL_FILE

# Fields of ``export`` that name tensors: names that one component lacks belong to another.
_OF_TENSORS = ("input_tensors", "dynamic_axes")
# Fields that decide the types of a quantized model; a component that sets one does not use the recipe's precision.
_OF_PRECISION = ("mode", "weight_type", "activation_type")
# Sources that the shared export reads.
_OF_EXPORT = ("model", "script")
_NOTHING = Recipe()
# The sections that a component has, too: name in a recipe and class, by field of the schema.
_MERGED: Mapping[str, tuple[str, type[Section]]] = {
    "export": ("export", Export),
    "quant": ("quant", Quant),
    "compile": ("compile", Compile),
    "validation": ("validate", Validate),
}
_SECTIONS = ("export", "optim", "quant", "compile", "validate", "skip_optimize")


def components_for(context: ResolveContext, model: Model) -> tuple[Component, ...]:
    """Return the components of *model* to build; none if it is exported in one piece, or is already ONNX.

    Raises:
        RecipeError: for a component that the model does not have.
    """
    named, loader = context.overrides.submodel, context.recipe.loader
    # A model from a user's script is exported in one piece.
    composite = None if loader.user_script else composite_of(model.model_type)
    if model.onnx is not None:
        why = f"{model.name} is ONNX already, so it has no components."
    elif loader.module_path is not None:
        why = "loader.module_path names one module, so there are no components."
    else:
        why = f"{model.name} is exported in one piece."
    if composite is None or model.onnx is not None or loader.module_path is not None:
        if named is not None or context.recipe.components:
            raise RecipeError(why, advice="Remove `components` and --submodel.")
        if model.onnx is not None and loader.module_path is not None:
            raise RecipeError(
                f"{model.name} is ONNX already, so loader.module_path cannot be taken out of it.",
                advice="Name the PyTorch model that it was exported from.",
            )
        return ()
    known = [component.name for component in composite.components]
    if unknown := next((name for name in context.recipe.components if name not in known), None):
        raise RecipeError(f"components.{unknown}: {model.name} has no such component{known_instead(unknown, known)}")
    if named is not None:
        return (component_named(str(model.model_type), named),)
    return chosen_components(model.model_type, context.task or model.task, loader.model_class)


def recipe_of(recipe: Recipe, component: Component) -> Recipe:
    """Return *recipe* as it applies to *component* alone.

    Raises:
        RecipeError: for sections that conflict.
    """
    own = recipe.components.get(component.name, Own())
    wrote = own.model_fields_set
    loader = recipe.loader.model_copy(update={"task": component.task, "model_class": component.class_name})
    update: dict[str, object] = {"loader": loader}
    left = {"components"}
    for field, (name, kind) in _MERGED.items():
        if field in wrote:
            # null skips the stage, whatever the recipe sets for all components.
            given = getattr(own, field)
            at = f"components.{component.name}.{name}"
            update[field] = None if given is None else kind.merged(getattr(recipe, field), given.to_dict(), at)
    if "optim" in wrote:
        update["optim"] = {**recipe.optim, **own.optim}
    if "quant" in wrote and (own.quant is None or own.quant.model_fields_set & {*_OF_PRECISION}):
        left.add("precision")
    if "skip_optimize" in wrote:
        update["skip_optimize"] = own.skip_optimize
    if own.precision is not None:
        update["precision"] = own.precision
        left.discard("precision")
    found = recipe.model_copy(update={**{name: getattr(_NOTHING, name) for name in left}, **update})
    found.model_fields_set.difference_update(left)
    return found


def composite_build(context: ResolveContext, model: Model, parts: Mapping[Component, Build]) -> Build:
    """Combine *parts*, the builds of single components of *model*, into one build.

    Raises:
        RecipeError: for settings that the components cannot share.
    """
    composite = composite_of(model.model_type)
    assert composite is not None
    task = context.task or model.task or composite.tasks[0]
    _refuse_in_common(context, parts)
    ignored = tuple(_outputs_notice(context, parts))
    parts = {component: _with_own_outputs(context, component, build) for component, build in parts.items()}
    named = {component.name: build for component, build in parts.items()}
    shared = {component.name: _shared_tensors(context, component) for component in parts}
    first = next(iter(named.values()))
    by_component = {
        component.name: {"task": component.task, "precision": str(build.summary.precision)}
        for component, build in parts.items()
    }
    export = ComponentsConfig(
        loader=replace(_export_of(first).loader, task=task, model_class=None),
        components={
            component.name: _component_fields(component, build, shared[component.name])
            for component, build in parts.items()
        },
    )
    return replace(
        first,
        summary=replace(
            first.summary,
            task=task,
            precision=_precision({name: own["precision"] for name, own in by_component.items()}),
            settings=_settings(named, shared, task),
            notices=(*_notices(named), *ignored),
            components=by_component,
        ),
        configs={"export": export},
        lacks=tuple(dict.fromkeys(lack for build in parts.values() for lack in build.lacks)),
        parts={name: _part(name, build) for name, build in named.items()},
    )


def _refuse_in_common(context: ResolveContext, parts: Mapping[Component, Build]) -> None:
    recipe = context.recipe
    if recipe.stages:
        raise RecipeError(
            "Custom stages cannot be placed between those of several components.",
            advice="Build one component with --submodel, or remove `stages`.",
        )
    targets = {component.name: f"{build.target.ep.name} ({build.target.device})" for component, build in parts.items()}
    if len(set(targets.values())) > 1:
        named = " and ".join(f"{name} for {target}" for name, target in targets.items())
        raise RecipeError(
            f"The components of one build have one target, and these have several: {named}.",
            advice="Name the target of all of them with `ep` and `device`, or build each alone with --submodel.",
        )
    saved = [build.save_ranges for build in parts.values() if build.save_ranges is not None]
    if len(set(saved)) < len(saved):
        raise RecipeError(
            f"quant.calibration_save_path: the ranges of several components would go to {saved[0].path}.",
            advice="Give each a path of its own, in components.NAME.quant.calibration_save_path.",
        )


def _with_own_outputs(context: ResolveContext, component: Component, build: Build) -> Build:
    """Return *build* without output names that the recipe sets for all components: each outputs all its tensors."""
    if _writes_outputs(context.recipe.components.get(component.name)):
        return build
    config, settings = _export_of(build), build.summary.settings
    export = {name: value for name, value in mapping(settings["export"]).items() if name != "output_tensors"}
    config = replace(config, export=replace(config.export, output_tensors=None))
    return replace(
        build.with_configs(export=config), summary=replace(build.summary, settings={**settings, "export": export})
    )


def _export_of(build: Build) -> ExportConfig:
    config: ExportConfig = build.configs["export"]
    return config


def _writes_outputs(own: Own | None) -> bool:
    return own is not None and own.export.output_tensors is not None


def _shared_tensors(context: ResolveContext, component: Component) -> tuple[str, ...]:
    """Return the tensor fields of ``export`` that *component* shares with the others: those that it does not set.

    Fields that this run overrides are always shared.
    """
    own = context.recipe.components.get(component.name, Own()).export.model_fields_set
    asked_now = context.overrides.section("export")
    return tuple(name for name in _OF_TENSORS if name in asked_now or name not in own)


def _component_fields(component: Component, build: Build, shared: tuple[str, ...]) -> ComponentFields:
    export = _export_of(build).export
    tensors = [each.name for each in export.input_tensors or ()] if "input_tensors" in shared else []
    axes = [*(export.dynamic_axes or {})] if "dynamic_axes" in shared else []
    return ComponentFields(component.class_name, component.task, export, tuple(sorted({*tensors, *axes})))


def _part(name: str, build: Build) -> Build:
    """Return *build* as a part: its model comes from the shared export, and its sources are prefixed with *name*."""
    sources = {
        slot: source if slot in _OF_EXPORT else replace(source, name=f"{name} {source.name}")
        for slot, source in build.sources.items()
    }
    build = build.with_configs(
        export=Skip("all components are exported together", listed=False),
        finalize=replace(build.configs["finalize"], file=prefixed(MODEL_FILE, name)),
    )
    return replace(build, sources=sources)


def _precision(precisions: Mapping[str, str]) -> str:
    """Return ``w8a16``, or ``w8a16 encoder, fp16 decoder`` if they differ."""
    if len(set(precisions.values())) == 1:
        return next(iter(precisions.values()))
    return ", ".join(f"{precision} {name}" for name, precision in precisions.items())


def _notices(parts: Mapping[str, Build]) -> Iterator[str]:
    """Yield notices that all components share once, others with the component's name."""
    in_all = set.intersection(*(set(build.summary.notices) for build in parts.values()))
    seen: set[str] = set()
    for name, build in parts.items():
        for notice in build.summary.notices:
            if notice not in in_all:
                yield f"{name}: {notice}"
            elif notice not in seen:
                seen.add(notice)
                yield notice


def _outputs_notice(context: ResolveContext, parts: Mapping[Component, Build]) -> Iterator[str]:
    recipe = context.recipe
    without = [
        component.name
        for component, build in parts.items()
        if _export_of(build).export.output_tensors and not _writes_outputs(recipe.components.get(component.name))
    ]
    if without:
        yield (
            f"export.output_tensors is not about one component, so {' and '.join(without)} return all outputs. "
            f"Name outputs in components.{without[0]}.export.output_tensors."
        )


def _settings(parts: Mapping[str, Build], shared: Mapping[str, tuple[str, ...]], task: str) -> JsonObject:
    """Return the frozen recipe of this build, with each component's settings in its own section."""
    settings = {name: build.summary.settings for name, build in parts.items()}
    first = next(iter(settings.values()))
    in_common = {name: value for name, value in first.items() if name not in _SECTIONS}
    loader = {name: value for name, value in mapping(first["loader"]).items() if name != "model_class"}
    tensors: dict[str, JsonValue] = {}
    components: dict[str, JsonValue] = {}
    for name, decided in settings.items():
        export = mapping(decided["export"])
        tensors |= {field: export[field] for field in shared[name] if field in export}
        own = {field: value for field, value in export.items() if field not in shared[name]}
        components[name] = {**{section: decided[section] for section in _SECTIONS if section in decided}, "export": own}
    return {
        **in_common,
        "loader": {**loader, "task": task},
        "export": tensors,
        "components": components,
    }
