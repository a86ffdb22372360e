"""The input of perf, eval and inspect: a model file, or an output folder of a build together with its manifest.

A recipe is built first in the usual way; its output folder is then the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Source
from winml_dag.ep.availability import RunTarget
from winml_dag.ep.provider import complete_options
from winml_dag.ep.registry import ExecutionProvider, Target, find_ep, is_emulated
from winml_dag.errors import InputError, UsageError, known_instead
from winml_dag.file_reading import read_json
from winml_dag.onnxmodel.sidecar import shares_binary
from winml_dag.pipeline.buildgraph import MODEL, BuildSummary, prefixed
from winml_dag.pipeline.documents import BuildManifest, OneModel
from winml_dag.pipeline.layout import BUILD_CONFIG, EXPORTED, MANIFEST, NORMALIZED, OPTIMIZED, QUANTIZED
from winml_dag.pipeline.manifest import Manifest, read_manifest
from winml_dag.pipeline.model import OnnxFile, find_model_folder, find_processor_folder
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.recipe.load import load_recipe
from winml_dag.stages import artifact_types
from winml_dag.store.artifact import Artifact
from winml_dag.store.store import Store

_RECIPE_SUFFIXES = (".yaml", ".yml", ".json")
GIVE = "Give an .onnx file or the output folder of a build."
_GIVE = f"{GIVE} A recipe is given with -c."
# What a compiled model was made from: the last of these files that the build kept.
_BEFORE_COMPILE = (QUANTIZED, OPTIMIZED, NORMALIZED, EXPORTED)
# The reference for quality: the model before any changes, by the stage that makes it.
_FLOAT = {"export": EXPORTED, "optimize": OPTIMIZED}


@dataclass(frozen=True)
class BuiltModel:
    """A model and what is recorded about its origin.

    Attributes:
        name: as the user named it: a file or a folder.
        model: the model file.
        target: the target it was built for; without a build, that of its EPContext nodes, else the CPU.
        provider_options: the options it was built with, except those that name files.
        uncompiled: the model it was compiled from; None if it is not compiled, or that model is not available.
        manifest: that of the build that made it; None for a file that no manifest lists.
        settings: the build's frozen recipe (``winml_build_config.json``); empty without one.
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
        """The component that the model belongs to, in a folder with one model per component."""
        return "" if self.manifest is None else self.manifest.build.component_of_file(self.model.path.name)

    @property
    def precision(self) -> str | None:
        """The precision of the build; None for its float models and for a file without a build."""
        is_float = self.model.path.name in [prefixed(name, self.component) for name in _FLOAT.values()]
        return None if is_float or self._own_entry is None else self._own_entry.precision or None

    @property
    def task(self) -> str | None:
        return None if self._own_entry is None else self._own_entry.task

    @property
    def _own_entry(self) -> OneModel | None:
        return None if self.manifest is None else self.manifest.build.of(self.model.path.name)


@dataclass(frozen=True)
class StoredModel:
    """A model in the cache that a build made; *path* is where it was in the folder, from which it is gone."""

    path: Path
    artifact: Artifact

    def source(self) -> Source:
        return Source(str(self.path), artifact_types.FLOAT_MODEL, (), stored=self.artifact)


def find_built_model(path: Path, component: str | None = None) -> BuiltModel:
    """Return the model that *path* names.

    That is an .onnx file, the output folder of a build, or a folder with a single .onnx file. In a folder with one
    model per component, *component* selects the model.

    Raises:
        InputError: when there is none, or it is damaged.
        UsageError: for a recipe, and for the output of a build without a model.
    """
    if path.is_file() and path.suffix.casefold() in _RECIPE_SUFFIXES:
        raise UsageError(f"{path} is not a model.", advice=f"If it is a recipe, give it with -c {path}.")
    file = model_file(path, advice=_GIVE, submodel=True) if component is None else component_file(path, component)
    manifest = read_manifest(file.parent)
    if manifest is not None and file.name not in {entry.name for entry in manifest.files}:
        manifest = None
    return _built_model(str(path), OnnxFile.at(file), manifest)


def request_for(recipe: Path) -> Request:
    """Return the request that builds *recipe* in the usual way; into the cache if the recipe names no output folder.

    Raises:
        RecipeError, InputError: when the recipe cannot be read.
        UsageError: when it only has stages of its own; nothing runs, since no model would result.
    """
    loaded = load_recipe(recipe)
    if loaded.recipe.stages and loaded.recipe.model_fields_set <= {"stages", "output_dir"}:
        raise UsageError(f"{recipe} builds no model, but stages of its own.", advice=_GIVE)
    return Request(recipe, Overrides(), use_cache=loaded.recipe.output_dir is None)


def refuse_component(recipe: Path, build: BuildSummary, component: str | None) -> None:
    """Raise UsageError if *build*, made from *recipe*, has no model for *component*, or needs one to be named."""
    known = list(build.components)
    if component is None and known:
        raise UsageError(
            f"{recipe} builds a model for each component: {', '.join(known)}.",
            advice=f"Name one of them, such as --submodel {known[0]}.",
        )
    if component is not None and not known:
        raise UsageError(f"{recipe} builds one model, without components.", advice="Omit --submodel.")
    if component is not None and component not in known:
        raise UsageError(f"{recipe} builds no component {component!r}{known_instead(component, known)}")


def measured_on(built: BuiltModel, ep: str | None, device: str | None) -> Target:
    """Return the target that *built* runs on: *ep* and *device* if given, else the one it was built for.

    Raises:
        UsageError: for an unknown name, a device that the provider cannot drive, a compiled model on another provider
            than its own, and one that only a device can load.
    """
    target = built.model.target_named(ep, device, built.target)
    if is_emulated(target) and shares_binary(built.model.path, built.model.summary):
        raise UsageError(
            f"{built.model.path} shares its binary with other models, and QNN's emulator, which is used instead of an"
            " NPU, crashes when it loads such a binary.",
            advice="Run it on the device, or compile it by itself to try it here.",
        )
    return target


def run_target(built: BuiltModel, target: Target, given: Mapping[str, str]) -> RunTarget:
    """Return *target* for running *built*, with the provider options it was built with, overridden by *given*.

    Options that name files are excluded: they control compilation, and their files are not inputs of this run.

    Raises:
        UsageError: for options that the provider does not have.
    """
    built_with = built.provider_options if target == built.target else {}
    options = complete_options(target, {**built_with, **given})
    kept = {name: value for name, value in options.items() if name not in target.ep.file_options}
    return RunTarget(target.ep.name, target.device, kept)


def float_model(built: BuiltModel, store: Store) -> OnnxFile | StoredModel | None:
    """Return the float model that *built* was made from, or None if it is not found.

    It is searched in the folder, in the cache, and at the build's source, in this order.
    """
    if built.manifest is None:
        return None
    for stage, name in _FLOAT.items():
        if found := _left(built.folder, built.manifest, {}, (name,), built.component):
            return found
        made = _made_by(stage, built.manifest.build, built.component)
        if made is not None and not store.missing(made.files):
            return StoredModel(built.folder / prefixed(name, built.component), made)
    return _left(built.folder, built.manifest, built.settings, (), built.component)


def _made_by(stage: str, build: BuildManifest, component: str) -> Artifact | None:
    """Return the last model that *stage* made of *component*; all components share one export."""
    for each in reversed(build.stages):
        slot = "model" if component == build.component_of(each) else prefixed("model", component)
        if each.name == stage and each.is_done and slot in each.outputs and each.outputs[slot].files:
            return Artifact(each.outputs[slot].files)
    return None


def reference_at(path: Path) -> OnnxFile:
    """Return the model at *path* for use as a reference.

    Raises:
        UsageError: for a compiled model.
        InputError: when it is missing or damaged.
    """
    found = OnnxFile.at(path)
    if found.kind == artifact_types.COMPILED_MODEL:
        raise UsageError(
            f"{found.path} is compiled, and the reference runs on the CPU.",
            advice="Give the model that it was made from.",
        )
    return found


def processor_of(built: BuiltModel, named: str | None, base: Path, *, download: bool) -> Source | None:
    """Return tokenizer, image processor and class names of the model folder or hub id *named*.

    A path is relative to *base*. Without *named*, they come from the model that *built* was built from, if that is
    available.

    Raises:
        InputError: when *named* does not exist.
    """
    if named is not None:
        return find_processor_folder(named, base, download=download).processor_source()
    built_from = built.settings.get("model")
    if not isinstance(built_from, str):
        return None
    try:
        return find_model_folder(built_from, built.folder, None, download=download).processor_source()
    except InputError:
        # It may have been deleted; a stage that needs it reports that.
        return None


def _built_model(name: str, model: OnnxFile, manifest: Manifest | None) -> BuiltModel:
    if manifest is None:
        return BuiltModel(name, model, model.target)
    folder, build = model.path.parent, manifest.build
    component = build.component_of_file(model.path.name)
    settings = settings_in(folder, component)
    compiled = model.kind == artifact_types.COMPILED_MODEL
    named = build.execution_provider and build.device
    target = Target(find_ep(build.execution_provider), build.device) if named else None
    # The binary takes precedence: its content is true of any file. The manifest decides only where the binary does not.
    has_source = any(context.source for context in model.summary.ep_context)
    if target is None or (has_source and target.ep != model.target.ep):
        target = model.target
    return BuiltModel(
        name,
        model,
        target,
        provider_options=_provider_options(settings, target.ep),
        uncompiled=_left(folder, manifest, settings, _BEFORE_COMPILE, component) if compiled else None,
        manifest=manifest,
        settings=settings,
    )


def settings_in(folder: Path, component: str = "") -> JsonObject:
    """Return the settings of the build in *folder*, with those of *component* on top; empty without any."""
    try:
        value = _mapping(read_json(folder / BUILD_CONFIG))
    except (OSError, ValueError):
        return {}
    return {**value, **_mapping(_mapping(value.get("components")).get(component))}


def _mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _provider_options(settings: JsonObject, ep: ExecutionProvider) -> dict[str, str]:
    section = _mapping(settings.get("compile"))
    named = section.get("provider_option_file_keys")
    files = {*ep.file_options, *(named if isinstance(named, list) else ())}
    given = _mapping(section.get("provider_options"))
    return {name: str(value) for name, value in given.items() if name not in files}


def _left(
    folder: Path, manifest: Manifest, settings: JsonObject, names: tuple[str, ...], component: str
) -> OnnxFile | None:
    """Return the first intact model that is not compiled: of the files *names* that the build kept, then the ONNX model
    that it started from.
    """
    ours = {entry.name for entry in manifest.files}
    paths = [folder / name for each in names if (name := prefixed(each, component)) in ours]
    began_with = settings.get("model")
    if isinstance(began_with, str) and began_with.casefold().endswith(".onnx"):
        paths.append(folder / began_with)
    for path in paths:
        with suppress(InputError):  # files next to a model may be missing
            model = OnnxFile.at(path)
            if model.kind != artifact_types.COMPILED_MODEL:
                return model
    return None


def model_file(path: Path, *, advice: str = GIVE, submodel: bool = False) -> Path:
    """Return the file that *path* names: itself, ``model.onnx`` in a folder, or the only .onnx file there.

    *submodel*: whether the caller can name one of several components.

    Raises:
        InputError: when there is none, or more than one.
        UsageError: for the folder of a build without a model.
    """
    if not path.exists():
        raise InputError(
            f"{path} does not exist.", advice=f"{advice} A model on the hub is built first, with `winml-dag build -m`."
        )
    if path.is_dir():
        return _model_in(path, advice, submodel=submodel)
    if not path.is_file():  # reading a pipe would block
        raise InputError(f"{path} is neither a file nor a folder.", advice=advice)
    return path


def _model_in(folder: Path, advice: str, *, submodel: bool) -> Path:
    if (folder / MODEL).is_file():
        return folder / MODEL
    found = sorted(file for file in folder.glob("*.onnx") if file.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(file.name for file in found)
        if finals := _components(folder):
            otherwise = ", or name a component with --submodel" if submodel else ""
            advice = f"Give one of them, such as {folder / finals[0]}{otherwise}."
            raise InputError(f"{folder} has a model for each component: {', '.join(finals)}.", advice=advice)
        raise InputError(f"{folder} has no {MODEL}, but several models: {names}.", advice="Give one of them.")
    if (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is of a build that makes no model.", advice=advice)
    if (folder / "config.json").is_file():
        raise InputError(
            f"{folder} is a PyTorch model, and has no ONNX model.",
            advice=f"Build it first: winml-dag build -m {folder} -o OUT.",
        )
    raise InputError(f"{folder} has no ONNX model.", advice=advice)


def component_file(folder: Path, component: str) -> Path:
    """Return the model of *component* in the output *folder* of a build.

    Raises:
        InputError: when there is none.
    """
    file = folder / prefixed(MODEL, component)
    if file.name in _components(folder):
        return file
    finals = ", ".join(_components(folder))
    raise InputError(
        f"{folder} has no model of a component {component!r}.",
        advice=f"It has: {finals}." if finals else "Give the output folder of a build of several components.",
    )


def _components(folder: Path) -> tuple[str, ...]:
    """Return the models to ship in *folder*, if a build wrote several."""
    manifest = read_manifest(folder)
    return () if manifest is None else manifest.build.final_artifacts
