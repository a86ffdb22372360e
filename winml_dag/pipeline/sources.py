"""Turn the recipe's name of a model into the source files of a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Source, SourceFile
from winml_dag.ep.availability import resolve_target
from winml_dag.ep.registry import AUTO, CPU, Target, find_ep
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import before_reading, read_json
from winml_dag.pipeline.layout import EXPORTED, MODEL
from winml_dag.recipe.load import is_path_like, resolve_path
from winml_dag.stages import artifact_types
from winml_dag.stages.builtin import LINE
from winml_dag.stages.samples import SUFFIXES, kind_of

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary
    from winml_dag.pipeline.epplace import EpPlace
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
_ABOUT_OTHERS = ("json", "csv")
# Files of an output folder that are named as the next stage expects its input.
_RESULTS = {file for stage in LINE.values() for file in stage.published.values()} - {MODEL}


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

    @property
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
            said = ", ".join(sorted(map(repr, sources - {""}))) or "none"
            raise InputError(
                f"{self.path} is compiled, and its EPContext nodes have to name one known execution provider as their"
                f" source; they name {said}.",
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


def folders_in(folder: Path) -> list[Path]:
    """Return *folder* and all folders in it: their entries decide which files are data."""
    before_reading(folder)
    inside = sorted(entry for entry in folder.rglob("*") if entry.is_dir())
    for entry in inside:
        before_reading(entry)
    return [folder, *inside]


def calibration_source(path: Path, field: str = "quant.calibration_data") -> Source:
    """Return a data file, or every data file in a folder; *field* is the setting that names it.

    Raises:
        InputError: when there is none.
    """
    folders_in(path)  # log these reads before the entries are listed
    files = tuple(_data_files(path))
    if not files:
        what = "has no data files" if path.is_dir() else "is not a data file" if path.exists() else "does not exist"
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise InputError(f"{field}: {path} {what} ({known}).")
    return data_source(files, f"{field}: {path}")


def data_source(files: Sequence[SourceFile], named: str) -> Source:
    """Return *files*, which must be of one kind, as data; *named* identifies them in errors.

    JSON and CSV tables next to other kinds of data describe that data (``metadata.csv``), and are skipped.

    Raises:
        InputError: when they are of several kinds.
    """
    found = {file: str(kind_of(file.name)) for file in files}
    chosen = set(found.values()) - set(_ABOUT_OTHERS) or set(found.values())
    if len(chosen) > 1:
        raise InputError(
            f"{named} has files of several kinds: {', '.join(sorted(chosen))}.",
            advice="Put those of one kind into a folder of their own.",
        )
    kept = tuple(file for file, kind in found.items() if kind in chosen)
    return Source("calibration data", artifact_types.CALIBRATION_DATA, kept)


def _data_files(path: Path) -> Iterator[SourceFile]:
    if path.is_dir():
        inside = sorted(entry for entry in path.rglob("*") if kind_of(entry.name) is not None and entry.is_file())
        yield from (SourceFile(entry.relative_to(path).as_posix(), entry) for entry in inside)
    elif path.is_file() and kind_of(path.name) is not None:
        # The name of a single file has no meaning: with a fixed name, renaming it changes no key. But an array has the
        # name of its input.
        suffix = path.suffix.lower()
        yield SourceFile(path.name if suffix == ".npy" else f"data{suffix}", path)
