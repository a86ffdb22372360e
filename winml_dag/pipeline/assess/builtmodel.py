"""What perf, eval and inspect are about: a model file, or an output folder of ours with what its manifest tells of it.

A recipe is built first, by the ordinary way; its output folder is meant then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Source
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import ExecutionProvider, Target, find_ep, is_emulated
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import read_json
from winml_dag.onnxmodel.sidecar import shares_binary
from winml_dag.pipeline.assess.modelfile import GIVE, component_file, model_file
from winml_dag.pipeline.buildgraph import BuildSummary
from winml_dag.pipeline.documents import BuildManifest, OneModel
from winml_dag.pipeline.layout import BUILD_CONFIG, EXPORTED, NORMALIZED, OPTIMIZED, QUANTIZED, prefixed
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.pipeline.sources import OnnxFile, find_model_folder, find_processor_folder
from winml_dag.recipe.document import known_instead
from winml_dag.recipe.load import load_recipe
from winml_dag.stages import kinds
from winml_dag.store.artifact import Artifact
from winml_dag.store.store import Store

_RECIPE_SUFFIXES = (".yaml", ".yml", ".json")
_GIVE = f"{GIVE} A recipe is given with -c."
# What a compiled model was made from: the last of these that the build left.
_BEFORE_COMPILE = (QUANTIZED, OPTIMIZED, NORMALIZED, EXPORTED)
# What quality is measured against: the model before anything was done to it; by the stage that makes it.
_FLOAT = {"export": EXPORTED, "optimize": OPTIMIZED}


@dataclass(frozen=True)
class BuiltModel:
    """A model, and what is known of where it came from.

    Attributes:
        name: as its user named it: a file or a folder.
        model: the model file.
        target: what it was built for; without a build, whose EPContext nodes it has, else the CPU.
        provider_options: those that it was built with, without options that name files.
        uncompiled: what it was compiled from; None when it is not compiled, or that is not at hand.
        manifest: of the build that made it; None for a file that no build of ours says is its own.
        settings: the build's recipe with everything decided (``winml_build_config.json``); empty without one.
    """

    name: str
    model: OnnxFile
    target: Target
    provider_options: Mapping[str, str] = field(default_factory=dict)
    uncompiled: OnnxFile | None = None
    manifest: Manifest | None = None
    settings: JsonObject = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.model.path.parent

    @property
    def component(self) -> str:
        """Whose model it is, in a folder with one for each of several components."""
        return "" if self.manifest is None else self.manifest.told.component_of_file(self.model.path.name)

    @property
    def precision(self) -> str | None:
        """That of the build; of its float models, and of a file that no build made, it says nothing."""
        is_float = self.model.path.name in [prefixed(name, self.component) for name in _FLOAT.values()]
        return None if is_float or self._told is None else self._told.precision or None

    @property
    def task(self) -> str | None:
        return None if self._told is None else self._told.task

    @property
    def _told(self) -> OneModel | None:
        return None if self.manifest is None else self.manifest.told.of(self.model.path.name)


@dataclass(frozen=True)
class StoredModel:
    """A model that a build made, and that the cache has: *path* is its place in the folder, where it is no more."""

    path: Path
    artifact: Artifact

    def source(self) -> Source:
        return Source(str(self.path), kinds.FLOAT_MODEL, (), stored=self.artifact)


def find_built_model(path: Path, component: str | None = None) -> BuiltModel:
    """The model that *path* means: an .onnx file, an output folder of ours, or a folder with a single .onnx file; of a
    folder with a model for each component, that of *component*.

    Raises:
        InputError: when there is none, or it is damaged.
        UsageError: for a recipe, and for the output of a build that makes no model.
    """
    if path.is_file() and path.suffix.casefold() in _RECIPE_SUFFIXES:
        raise UsageError(f"{path} is no model.", advice=f"If it is a recipe, give it with -c {path}.")
    file = model_file(path, advice=_GIVE, submodel=True) if component is None else component_file(path, component)
    manifest = read_manifest(file.parent)
    if manifest is not None and file.name not in {entry.name for entry in manifest.files}:
        manifest = None
    return _built_model(str(path), OnnxFile.at(file), manifest)


def request_for(recipe: Path) -> Request:
    """What builds *recipe* by the ordinary way; in the cache, when the recipe names no output folder.

    Raises:
        RecipeError, InputError: when the recipe cannot be read.
        UsageError: when it has stages of its own alone: nothing is run for a model that does not come.
    """
    loaded = load_recipe(recipe)
    if loaded.recipe.stages and loaded.recipe.model_fields_set <= {"stages", "output_dir"}:
        raise UsageError(f"{recipe} builds no model, but stages of its own.", advice=_GIVE)
    return Request(recipe, Overrides(), use_cache=loaded.recipe.output_dir is None)


def refuse_component(recipe: Path, build: BuildSummary, component: str | None) -> None:
    """Raise UsageError where *build*, that of *recipe*, will not have one model for *component*, or one without."""
    known = list(build.components)
    if component is None and known:
        raise UsageError(
            f"{recipe} builds a model for each component: {', '.join(known)}.",
            advice=f"Name one of them, such as --submodel {known[0]}.",
        )
    if component is not None and not known:
        raise UsageError(f"{recipe} builds one model, without components.", advice="Leave out --submodel.")
    if component is not None and component not in known:
        raise UsageError(f"{recipe} builds no component {component!r}{known_instead(component, known)}")


def measured_on(built: BuiltModel, ep: str | None, device: str | None) -> Target:
    """Where *built* runs: as *ep* and *device* say, else where it was built for.

    Raises:
        UsageError: for an unknown name, a device that the provider cannot drive, a compiled model on another provider
            than its own, and one that only a device can load.
    """
    target = built.model.target_named(ep, device, built.target)
    if is_emulated(target) and shares_binary(built.model.path, built.model.summary):
        raise UsageError(
            f"{built.model.path} shares its binary with other models, and QNN's emulator, which stands for the NPU"
            " here, crashes when it loads such a binary.",
            advice="Run it on the device, or compile it by itself to try it here.",
        )
    return target


def options_on(built: BuiltModel, target: Target, given: Mapping[str, str]) -> dict[str, str]:
    """The provider options with which *built* runs on *target*: those that it was built with for it, and *given* ones
    in place of theirs. None that names a file: such steer a compilation, and their files are not among our inputs.

    Raises:
        UsageError: for options that the provider does not know.
    """
    built_with = built.provider_options if target == built.target else {}
    options = complete_options(target, {**built_with, **given})
    files = target.ep.file_options
    return {name: value for name, value in options.items() if name not in files}


def float_model(built: BuiltModel, store: Store) -> OnnxFile | StoredModel | None:
    """The float model that *built* was made from: from its folder, else from the cache, else what the build began
    with; None where nobody has it.
    """
    if built.manifest is None:
        return None
    for stage, name in _FLOAT.items():
        if found := _first(_left(built.folder, built.manifest, {}, (name,), built.component)):
            return found
        made = _made_by(stage, built.manifest.told, built.component)
        if made is not None and not store.missing(made.files):
            return StoredModel(built.folder / prefixed(name, built.component), made)
    return _first(_left(built.folder, built.manifest, built.settings, (), built.component))


def _made_by(stage: str, told: BuildManifest, component: str) -> Artifact | None:
    """The last model that *stage* made of *component*; all components have one export."""
    for each in reversed(told.stages):
        slot = "model" if component == told.component_of(each) else prefixed("model", component)
        if each.name == stage and each.is_done and slot in each.outputs and each.outputs[slot].files:
            return Artifact(each.outputs[slot].files)
    return None


def reference_at(path: Path) -> OnnxFile:
    """The model at *path*, to hold others against.

    Raises:
        UsageError: for a compiled one.
        InputError: when it is missing or damaged.
    """
    found = OnnxFile.at(path)
    if found.kind == kinds.COMPILED_MODEL:
        raise UsageError(
            f"{found.path} is compiled, and the reference runs on the CPU.",
            advice="Give the model that it was made from.",
        )
    return found


def processor_of(built: BuiltModel, named: str | None, base: Path, *, download: bool) -> Source | None:
    """Tokenizer, image processor and names of classes: of the model folder or hub id *named* (a path is relative to
    *base*), else of what *built* was built from, if that is here.

    Raises:
        InputError: when what is named is not there.
    """
    if named is not None:
        return find_processor_folder(named, base, download=download).processor_source()
    built_from = built.settings.get("model")
    if not isinstance(built_from, str):
        return None
    try:
        return find_model_folder(built_from, built.folder, None, download=download).processor_source()
    except InputError:
        # It may have been taken away; the stage says so where it needs one.
        return None


def _built_model(name: str, model: OnnxFile, manifest: Manifest | None) -> BuiltModel:
    if manifest is None:
        return BuiltModel(name, model, model.target)
    folder = model.path.parent
    component = manifest.told.component_of_file(model.path.name)
    settings = _settings(folder, component)
    compiled = model.kind == kinds.COMPILED_MODEL
    target = _target_of_build(manifest)
    # What a binary says of itself is true of any file; a manifest is believed where the binary says nothing.
    says_whose = any(context.source for context in model.summary.ep_context)
    if target is None or (says_whose and target.ep != model.target.ep):
        target = model.target
    return BuiltModel(
        name,
        model,
        target,
        provider_options=_provider_options(settings, target.ep),
        uncompiled=_first(_left(folder, manifest, settings, _BEFORE_COMPILE, component)) if compiled else None,
        manifest=manifest,
        settings=settings,
    )


def _settings(folder: Path, component: str) -> JsonObject:
    """What the build in *folder* was told; of a *component*, what is its own besides."""
    try:
        value = read_json(folder / BUILD_CONFIG)
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    components = value.get("components")
    own = components.get(component) if isinstance(components, dict) else None
    return {**value, **own} if isinstance(own, dict) else value


def _target_of_build(manifest: Manifest) -> Target | None:
    told = manifest.told
    return Target(find_ep(told.execution_provider), told.device) if told.execution_provider and told.device else None


def _provider_options(settings: JsonObject, ep: ExecutionProvider) -> dict[str, str]:
    section = settings.get("compile")
    given = section.get("provider_options") if isinstance(section, Mapping) else None
    if not isinstance(given, Mapping):
        return {}
    named = section.get("provider_option_file_keys") if isinstance(section, Mapping) else None
    files = {*ep.file_options, *(named if isinstance(named, list | tuple) else ())}
    return {str(name): str(value) for name, value in given.items() if name not in files}


def _left(
    folder: Path, manifest: Manifest, settings: JsonObject, names: tuple[str, ...], component: str
) -> Iterator[Path]:
    """Those of the files *names* that the build left, then the ONNX model that it began with."""
    ours = {entry.name for entry in manifest.files}
    yield from (folder / name for each in names if (name := prefixed(each, component)) in ours)
    began_with = settings.get("model")
    if isinstance(began_with, str) and began_with.casefold().endswith(".onnx"):
        yield folder / began_with


def _first(paths: Iterator[Path]) -> OnnxFile | None:
    """The first that is a sound model and not compiled: what lies beside a model may be gone without harm to it."""
    for path in paths:
        with suppress(InputError):
            model = OnnxFile.at(path)
            if model.kind != kinds.COMPILED_MODEL:
                return model
    return None
