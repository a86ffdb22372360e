"""Turn the name of a model in a recipe or option into the source files of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.configuration import config_file
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import AUTO, CPU, Target, find_ep
from winml_dag.errors import InputError, RecipeError, UsageError
from winml_dag.file_reading import before_reading, read_json
from winml_dag.pipeline.layout import EXPORTED
from winml_dag.recipe.fields import is_path_like, resolve_path
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary
    from winml_dag.pipeline.decisions import ResolveContext
    from winml_dag.pipeline.line import EpPlace
    from winml_dag.store.artifact import Artifact

# Files that transformers reads other than weights, by reader. All other files in a folder (pictures, licences, weights
# of other frameworks) may change without a rerun of any stage.
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "adapter_config.json",  # export rejects it: otherwise it would export the base model alone
)
_PROCESSOR_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
)
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
# Files of an output folder that are named as the next stage expects its input.
_RESULTS = {file for stage in LINE.values() for file in stage.published.values() if stage.name != "finalize"}


@dataclass(frozen=True)
class ModelFolder:
    """A PyTorch model as saved by transformers: a local folder, or a snapshot in the hub cache."""

    folder: Path
    config: JsonObject
    looked_at: tuple[Path, ...] = ()
    from_hub: bool = False

    @classmethod
    def at(cls, folder: Path, looked_at: tuple[Path, ...] = (), *, from_hub: bool = False) -> ModelFolder:
        """Open a model folder. *looked_at*: paths that led here. Raises InputError when it is not a model folder."""
        path = folder / "config.json"
        before_reading(folder)
        before_reading(path)
        try:
            config = read_json(path)
        except FileNotFoundError:
            if (folder / "adapter_config.json").is_file():
                raise InputError(
                    f"{folder} has only an adapter, without its base model.",
                    advice="Merge them (peft's merge_and_unload), save the result and give that folder.",
                ) from None
            raise InputError(
                f"{folder} has no config.json, so it is not a model folder.",
                advice="Give the folder that transformers' save_pretrained wrote, a hub id, or an .onnx file.",
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}.") from error
        if not isinstance(config, Mapping):
            raise InputError(f"{path} is not a JSON object.")
        # The names in the folder decide which of its files are the weights.
        return cls(folder, config, (folder, *looked_at), from_hub)

    def model_source(self, *, code: bool) -> Source:
        """Return config and weights; with *code* also the Python files that ``trust_remote_code`` would run.

        Raises:
            InputError: when there are no weights, or some are missing.
        """
        names = [name for name in _MODEL_FILES if (self.folder / name).is_file()]
        names += self._weights()
        if code:
            names += sorted(path.name for path in self.folder.glob("*.py"))
        return Source("model folder", artifact_types.MODEL_FOLDER, self._files(names))

    def processor_source(self) -> Source:
        """Return tokenizer and preprocessor settings. Raises InputError when there are none."""
        names = [name for name in _PROCESSOR_FILES if (self.folder / name).is_file()]
        if not names:
            raise InputError(f"{self.folder} has neither a tokenizer nor an image processor.")
        return Source("processor folder", artifact_types.PROCESSOR_FOLDER, self._files(names))

    def _files(self, names: list[str]) -> tuple[SourceFile, ...]:
        return tuple(SourceFile(name, self.folder / name) for name in names)

    def _weights(self) -> list[str]:
        for index in _WEIGHT_INDEXES:
            if (self.folder / index).is_file():
                return [index, *self._shards(self.folder / index)]
        for name in _WEIGHT_FILES:
            if (self.folder / name).is_file():
                return [name]
        raise InputError(
            f"{self.folder} has no weights ({', '.join(_WEIGHT_FILES)}).",
            advice="Download them, or use loader.random_weights (--random-weights).",
        )

    def _shards(self, index: Path) -> list[str]:
        before_reading(index)
        try:
            shards = sorted(set(read_json(index)["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{index} is not an index of weights: {error}.") from error
        for name in shards:
            if not isinstance(name, str) or not (self.folder / name).is_file():
                raise InputError(f"{self.folder} lacks {name!r}, a part of its weights.")
        return shards


@dataclass(frozen=True)
class OnnxFile:
    """A model that is already ONNX."""

    path: Path
    summary: ModelSummary

    @classmethod
    def at(cls, path: Path) -> OnnxFile:
        """Open a model. Raises InputError when it or a file of it is missing or truncated, or when it is not ONNX."""
        # Imported here: only builds from ONNX need it, and it takes 10 ms.
        from winml_dag.onnxmodel.inspect import inspect_model

        before_reading(path)
        return cls(path, inspect_model(path))

    @cached_property
    def kind(self) -> str:
        if self.summary.is_compiled:
            return artifact_types.COMPILED_MODEL
        if self.summary.is_weight_only:
            return artifact_types.WEIGHT_ONLY_MODEL
        return artifact_types.QUANTIZED_MODEL if self.summary.is_quantized else artifact_types.FLOAT_MODEL

    @property
    def target(self) -> Target:
        """The target of a compiled model's binaries; the CPU for all other models.

        Raises:
            InputError: when its EPContext nodes name no supported execution provider, or several.
        """
        if self.kind != artifact_types.COMPILED_MODEL:
            return Target(CPU, "cpu")
        sources = {context.source for context in self.summary.ep_context}
        try:
            (ep,) = {find_ep(source) for source in sources}
        except (UsageError, ValueError):
            known_sources = ", ".join(sorted(map(repr, sources - {""}))) or "none"
            raise InputError(
                f"{self.path} is compiled, and its EPContext nodes have to name one known execution provider as their"
                f" source; they name {known_sources}.",
                advice="Use the ONNX model that it was compiled from.",
            ) from None
        return Target(ep, ep.devices[0])

    def target_named(self, ep: str | None, device: str | None, own: Target) -> Target:
        """Return the target that *ep* and *device* select for the model; *own* is the default.

        Raises:
            UsageError: for an unknown name, a device that the provider cannot drive, and a compiled model on another
                provider than its own.
        """
        ep, device = (None if name is None or name.lower() == AUTO else name for name in (ep, device))
        if ep is None and device is None:
            return own
        if ep is None and device in own.ep.devices:
            ep = own.ep.alias
        target = resolve_target(ep, device)
        if self.kind == artifact_types.COMPILED_MODEL and target.ep != own.ep:
            raise UsageError(
                f"{self.path} is compiled for {own.ep.name} and runs nowhere else.",
                advice="For another provider, give the ONNX model that it was compiled from.",
            )
        return target

    def source(self) -> Source:
        """Return the model with its external data and EPContext sidecars."""
        folder = self.path.parent
        # Use the file name of export: then a model that was exported here and one given as ONNX have the same key
        # downstream, and renaming the file changes no key. A file with the name of a stage's result keeps it, since it
        # may be that result, whose downstream stages are cached. Files that it refers to must keep their names.
        own = self.path.name
        name_of_own = own if own in _RESULTS else EXPORTED
        files = (SourceFile(name_of_own if name == own else name, folder / name) for name in self.summary.files)
        return Source(str(self.path), self.kind, tuple(files))


@dataclass(frozen=True)
class Known:
    """What was read for one build, and applies to all others that are planned with it.

    ``models``: by path; ``artifacts``: the content of sources; ``places``: by target.
    """

    models: dict[Path, OnnxFile] = field(default_factory=dict)
    artifacts: dict[Source, Artifact] = field(default_factory=dict)
    places: dict[Target, EpPlace] = field(default_factory=dict)

    @cached_property
    def configuration(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The file that configures environments of providers: first if it exists, else second."""
        path = config_file().absolute()
        before_reading(path)
        return ((path,), ()) if path.exists() else ((), (path,))

    def model(self, path: Path) -> OnnxFile:
        """Return the model at *path*. Raises as :meth:`OnnxFile.at` does."""
        if path not in self.models:
            self.models[path] = OnnxFile.at(path)
        return self.models[path]


def find_model_folder(name: str, base: Path, revision: str | None, *, download: bool) -> ModelFolder:
    """Return the folder of *name*: a path (relative to *base*), else a hub id.

    Raises:
        InputError: when it is neither local nor available on the hub.
    """
    path = resolve_path(base, name)
    before_reading(path)
    if path.is_dir():
        return ModelFolder.at(path)
    if path.exists():
        raise InputError(f"{path} is neither a model folder nor an .onnx file.")
    if is_path_like(name):
        raise InputError(f"{path} does not exist.", advice="Check the path, or give a hub id such as org/name.")
    from winml_dag.pipeline import hub

    folder = hub.snapshot(name, revision, download=download)
    # A local folder of this name would take precedence over the hub, and the cached reference may move to another
    # commit.
    return ModelFolder.at(folder, (path, hub.reference(name, revision)), from_hub=True)


def find_processor_folder(name: str, base: Path, *, download: bool) -> ModelFolder:
    """Return the folder of *name* for its processor alone: it need not have a model's config.

    Raises:
        InputError: when it is neither local nor available on the hub.
    """
    path = resolve_path(base, name)
    before_reading(path)
    if path.is_dir():
        return ModelFolder(path, {}, (path,))
    return find_model_folder(name, base, None, download=download)


# --- Which model a build starts from.

# Fields of ``export`` that also apply to an ONNX model.
OF_ONNX = ("batch_size", "shape_config", "input_tensors")

# The task of a model without a head: enough to find the modules of an architecture.
_BARE = "feature-extraction"


@dataclass(frozen=True)
class Model:
    """The model that a build starts from: a folder, an ONNX file, or (if neither) random weights."""

    name: str
    folder: ModelFolder | None = None
    onnx: OnnxFile | None = None
    model_type: str | None = None

    @property
    def task(self) -> str | None:
        """The task that it was trained for, according to its folder."""
        if self.folder is None:
            return None
        from winml_dag.stages.export.detect import task_of  # here, since an ONNX model needs none

        return task_of(self.folder.config)

    @property
    def looked_at(self) -> tuple[Path, ...]:
        """Paths other than its own files that influenced which model this is."""
        return () if self.folder is None else self.folder.looked_at


def find_model(context: ResolveContext, known: Known) -> Model:
    """Find the model that *context* names.

    Raises:
        UsageError, RecipeError: when none is named, or the names contradict each other.
        InputError: for a model that is missing or damaged.
    """
    overrides, loader = context.overrides, context.recipe.loader
    if overrides.random_weights and (named := overrides.model or overrides.onnx) is not None:
        raise UsageError(f"--random-weights makes weights up, and {named} has its own.", advice="Give one of them.")
    if overrides.onnx is not None:
        if overrides.model is not None:
            raise UsageError("--model and --onnx name two models.", advice="Give one of them.")
        return _onnx_model(context, str(overrides.onnx), overrides.onnx, known)
    # An argument's path is relative to the current folder, a path in a recipe to the recipe.
    base = Path.cwd() if overrides.model is not None else context.base
    name = overrides.model or loader.path or context.recipe.model
    if context.random_weights is not None:
        return _random_model(context, name)
    if name is not None and name.casefold().endswith(".onnx"):
        return _onnx_model(context, name, resolve_path(base, name), known)
    if name is None and loader.user_script is not None:
        return Model(Path(loader.user_script).name, model_type=loader.model_type)
    if name is None:
        raise UsageError(
            "No model is named.", advice="Give -m/--model, --onnx, `model:` in the recipe, or loader.random_weights."
        )
    if context.recipe.export is None:
        raise RecipeError(f"export is null, which means that the model is ONNX already, but {name!r} is no .onnx file.")
    from winml_dag.stages.export.detect import model_type_of

    folder = find_model_folder(name, base, loader.revision, download=context.download)
    return Model(name, folder=folder, model_type=loader.model_type or model_type_of(folder.config))


def _onnx_model(context: ResolveContext, name: str, path: Path, known: Known) -> Model:
    if other := sorted({*context.overrides.section("export")} - {*OF_ONNX}):
        raise UsageError(
            f"{name} is ONNX already, so nothing is exported, and export.{other[0]} could change nothing.",
            advice="Remove it, or give the PyTorch model. The sizes of inputs can be given.",
        )
    return Model(name, onnx=known.model(path))


def _random_model(context: ResolveContext, named: str | None) -> Model:
    """Return a model with random weights; *named*, the recipe's model, is neither read nor used as a name."""
    is_onnx = named is not None and named.casefold().endswith(".onnx")
    if context.recipe.export is None or is_onnx:
        why = f"{named} is ONNX" if is_onnx else "export is null, which means that the model is ONNX"
        raise RecipeError(f"{why} already, but random weights are for a model that is exported.")
    model_type = context.recipe.loader.model_type
    if model_type is None:
        raise RecipeError(
            "Random weights need loader.model_type, which says what architecture to make.",
            advice="Set it, for example to bert or resnet.",
        )
    return Model(f"{model_type} with random weights", model_type=model_type)


def task_for(context: ResolveContext, model: Model) -> str | None:
    """Return the task of *model*, as requested, else as the model declares; None for an ONNX model.

    Raises:
        UsageError: when neither names a task, or the recipe an unknown one.
    """
    task = context.task or model.task
    if model.onnx is not None:
        return task
    from winml_dag.stages.export.detect import TASKS, task_named, task_of

    if task is not None:
        task_named(task)  # raises for an unknown one
        return task
    if context.recipe.loader.model_class is not None:
        task = task_of({"architectures": [context.recipe.loader.model_class]})
    if task is None and context.recipe.loader.module_path is not None:
        return _BARE  # enough to load the class that contains the module
    if task is None:
        raise RecipeError(
            f"What is {model.name!r} for? Neither the recipe nor the model says.",
            advice=f"Set loader.task or give --task, for example feature-extraction. There are: {', '.join(TASKS)}.",
        )
    return task
