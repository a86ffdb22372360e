"""The output folder of a build: which folder it is, the names of its files, and what a finished build writes there.

The names are those of winml-cli, so that tools for its results also find these. The file names of a stage are fixed, so
that equal work has equal bytes. In a folder with several components, each file name is prefixed with its component, and
a model that refers to other files by name (weights or a binary next to it) is rewritten.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from winml_dag.canonical import JsonObject, canonical_json, mapping
from winml_dag.engine.events import StageResult
from winml_dag.errors import RecipeError, StoreError, UsageError
from winml_dag.names import KEPT
from winml_dag.pipeline.buildgraph import BuildGraph, BuildSummary, prefixed
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.search import folded, round_of
from winml_dag.stages import artifact_types
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.digest import digest_file
from winml_dag.store.store import Store

if TYPE_CHECKING:
    from winml_dag.engine.stage import Node
    from winml_dag.pipeline.request import Request
    from winml_dag.recipe.load import LoadedRecipe

EXPORTED = "export.onnx"
NORMALIZED = "normalized.onnx"
OPTIMIZED = "optimized.onnx"
QUANTIZED = "quantized.onnx"
HIERARCHY = "export_htp_metadata.json"
MANIFEST = "build_manifest.json"
BUILD_CONFIG = "winml_build_config.json"
RANGES = artifact_types.RANGES_FILE
# Files next to a single quantized model, named after it.
REPORTS = (artifact_types.SENSITIVITY_FILE, artifact_types.SENSITIVITY_PICTURE)


def is_builtin(node: Node) -> bool:
    """Whether *node* is a built-in stage rather than one of the recipe's own; both may write to the recipe's folder."""
    return node.folder is None or node.stage.work.startswith("winml_dag.stages.")


def beside_output(output_file: str, name: str) -> str:
    """Return the name of the report *name* next to the single output file of a build."""
    return f"{output_file[: -len('.onnx')]}_{name.removeprefix('export_')}"


def component_of(node: Node, components: Collection[str]) -> str:
    """Return which of *components* *node* belongs to; empty if it belongs to all, or there are none."""
    first = node.id.partition(".")[0]
    return first if first in components else ""


def reports(node: Node) -> tuple[str, ...]:
    """Return the reports of *node* that are written next to a build's single output file, named after it."""
    if node.stage.name == "sensitivity":
        return REPORTS
    return (HIERARCHY,) if node.stage.name == "export" and _wants_hierarchy(node.config) else ()


def _wants_hierarchy(config: JsonObject) -> bool:
    """Whether the export has a hierarchy; if one of several components has one, all do."""
    parts = mapping(config.get("components")).values() or (config,)
    return any(mapping(mapping(part).get("export")).get("enable_hierarchy_tags") for part in parts)


def published_outputs(node: Node, settings: JsonObject, components: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the output slots of *node*, a built-in stage, that are published in the output folder.

    Each comes with the component that prefixes its file names. *settings* are those of the build.
    """
    stage, component = node.stage, component_of(node, components)
    if stage.name == "calibrate" and not _shows_ranges(settings, component):
        return
    for slot in stage.published:
        # The slots of a shared export have the prefix; finalize already uses the final name.
        yield slot, slot.rpartition("_")[0] or ("" if stage.name == "finalize" else component)


def _shows_ranges(settings: JsonObject, component: str = "") -> bool:
    if component:
        settings = mapping(mapping(settings.get("components")).get(component))
    return bool(mapping(settings.get("quant")).get("save_calibration"))


def is_carried_on(node: Node, other: Node) -> bool:
    """Whether *other* continues the work of *node* in the same stage: then only the last output is published."""
    mine, its = round_of(node), round_of(other)
    if mine is not None and its is not None:
        return mine[0] == its[0] and mine[1] < its[1]
    read = other.inputs.values()
    return other.stage.name == node.stage.name and any(node.output(slot) in read for slot in node.stage.outputs)


def reserved(settings: JsonObject, components: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names that a build with *settings* may write, whether or not it skips their stages.

    A user's file of such a name is a conflict.
    """
    # Imported here: a build of the recipe's own stages reserves no names.
    from winml_dag.stages.builtin import LINE

    names = (
        prefixed(file, component)
        for component in components or ("",)
        for stage in LINE.values()
        if stage.name != "calibrate" or _shows_ranges(settings, component)
        for file in stage.published.values()
    )
    return (*names, MANIFEST, BUILD_CONFIG)


def wanted_reports(planned: BuildGraph) -> Iterator[str]:
    """Return the names of reports next to a build's single output file, or next to those of its components."""
    return _beside_outputs(planned, reports)


def outdated_reports(planned: BuildGraph) -> Iterator[str]:
    """Return the names of reports that an earlier build may have written next to this file, and this one does not."""
    return _beside_outputs(planned, lambda node: () if node.stage.name != "export" or reports(node) else (HIERARCHY,))


def _beside_outputs(planned: BuildGraph, reports_of: Callable[[Node], tuple[str, ...]]) -> Iterator[str]:
    summary = planned.summary
    assert summary.output_file is not None
    names = [path.name for path in summary.models_by_component.values()] or [summary.output_file]
    for node in planned.graph.nodes:
        if is_builtin(node):
            yield from (beside_output(name, report) for name in names for report in reports_of(node))


@dataclass(frozen=True)
class Published:
    """``files``: all files of the output folder; ``rewritten``: the content of those that are not stored results."""

    files: tuple[FileEntry, ...]
    rewritten: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def results(self) -> tuple[FileEntry, ...]:
        """The files that the store has."""
        return tuple(entry for entry in self.files if entry.name not in self.rewritten)


# Files of one output, and the names of those that have another one in the folder.
_Named: TypeAlias = tuple[tuple[FileEntry, ...], Mapping[str, str]]


@dataclass(frozen=True)
class FinishedBuild:
    """A build, or the part of one that was brought up to date, with the results of its stages, by id."""

    planned: BuildGraph
    results: Mapping[str, StageResult]
    store: Store
    elapsed_seconds: float = 0.0

    @property
    def summary(self) -> BuildSummary:
        return self.planned.summary

    @cached_property
    def like(self) -> Mapping[str, str]:
        """The id of the stage that each repeated round of a search repeats."""
        return folded(self.results.values()).like

    @cached_property
    def published(self) -> Published:
        """The files of the output folder; a file that several stages share (a sidecar) is listed once.

        For a build of a single file: that file, the files that belong to it, and reports named after it.

        Raises:
            StoreError: when two stages output different files with the same name.
            BlobDamaged: when a model that has to be rewritten cannot be fetched.
        """
        found: dict[str, FileEntry] = {}
        rewritten: dict[str, bytes] = {}
        for files, names in self._named_files():
            entries, texts = self._in_the_folder(files, names)
            rewritten |= texts
            for entry in entries:
                if found.setdefault(entry.name, entry) != entry:
                    raise StoreError(f"Two stages write different files named {entry.name}.")
        return Published(tuple(sorted(found.values())), rewritten)

    def needed_files(self) -> Iterator[FileEntry]:
        """Yield the files of the store that the output folder needs, unchanged or rewritten."""
        for files, _ in self._named_files():
            yield from files

    def _named_files(self) -> Iterator[_Named]:
        one = self.summary.output_file
        return self._files_of_all() if one is None else self._files_of_one(one)

    def _files_of_all(self) -> Iterator[_Named]:
        summary = self.summary
        ours = [result for result in self.results.values() if is_builtin(result.node)]
        for result in ours:
            assert result.record is not None
            if any(is_carried_on(result.node, other.node) for other in ours):
                continue
            for slot, component in published_outputs(result.node, summary.settings, summary.components):
                if not self.planned.shows(result.node, slot):
                    continue
                files = result.record.outputs[slot].files
                yield files, {entry.name: prefixed(entry.name, component) for entry in files}

    def _files_of_one(self, name: str) -> Iterator[_Named]:
        models = {component: path.name for component, path in self.summary.models_by_component.items()}
        for node_id, result in self.results.items():
            assert result.record is not None
            files = tuple(entry for artifact in result.record.outputs.values() for entry in artifact.files)
            if node_id in self.planned.finals:
                # finalize has named the model, and its companion files refer to it by name. Ranges are one file.
                yield files, {RANGES: name}
                continue
            for slot, artifact in result.record.outputs.items():
                beside = models.get(slot.removesuffix("_hierarchy"), name)
                chosen = tuple(entry for entry in artifact.files if entry.name in reports(result.node))
                yield chosen, {entry.name: beside_output(beside, entry.name) for entry in chosen}

    def _in_the_folder(
        self, files: tuple[FileEntry, ...], others: Mapping[str, str]
    ) -> tuple[list[FileEntry], dict[str, bytes]]:
        """Return *files* under their published names, and the content of a model that is rewritten."""
        names = {entry.name: others.get(entry.name, entry.name) for entry in files}
        entries = [replace(entry, name=names[entry.name]) for entry in files]
        models = [entry for entry in files if entry.name.endswith(".onnx")]
        if len(files) < 2 or len(models) != 1 or all(name == known for name, known in names.items()):
            return entries, {}
        entry, content = self._rewritten(models[0], names)
        return [entry if known.name == entry.name else known for known in entries], {entry.name: content}

    def _rewritten(self, model: FileEntry, names: Mapping[str, str]) -> tuple[FileEntry, bytes]:
        """Return *model* under its new name, with references to other files replaced by their new *names*."""
        # Imported here: only a composite model needs them.
        import tempfile

        from winml_dag.onnxmodel.sidecar import write_renamed

        others = {name: known for name, known in names.items() if name != model.name}
        with tempfile.TemporaryDirectory(prefix="winml-dag-") as folder:
            self.store.fetch(Artifact.of([model]), Path(folder))
            written = Path(folder) / "renamed.onnx"
            write_renamed(Path(folder) / model.name, written, others)
            digest, content = digest_file(written), written.read_bytes()
        return FileEntry(names[model.name], digest, len(content)), content


# In the cache folder, for results that are kept there (--use-cache) instead of in a separate folder.
OUTPUTS = "outputs"


def output_dir_of(request: Request, cache_dir: Path) -> Path:
    """Return the output folder of *request*; its model need not exist.

    Raises:
        UsageError: when no output folder is named.
        RecipeError: for an invalid recipe.
    """
    return output_folder(request, request.loaded(), cache_dir, needed=True)


def output_folder(request: Request, loaded: LoadedRecipe | None, cache_dir: Path, needed: bool) -> Path:
    if request.use_cache:
        if request.output_dir is not None:
            raise UsageError("-o/--output-dir and --use-cache exclude each other.", advice="Give one of them.")
        return cache_dir / OUTPUTS / _cache_name(request, loaded)
    named = request.output_dir
    if named is None and loaded is not None and loaded.recipe.output_dir is not None:
        named = loaded.resolve_path(loaded.recipe.output_dir)
    if named is not None:
        # Elsewhere in the cache a collection would take the files for garbage.
        cache, path = f"{os.path.abspath(cache_dir)}{os.sep}", f"{os.path.abspath(named)}{os.sep}"  # noqa: PTH100
        if path.startswith(cache) and not path.startswith(f"{cache}{OUTPUTS}{os.sep}"):
            raise UsageError(
                f"{named} is in the cache folder.", advice="Choose another folder with -o, or --use-cache."
            )
        return named
    if loaded is not None and has_only_stages(loaded, request.overrides):
        # Stages choose their own output paths; only the manifest needs a folder. Use the full file name of the recipe:
        # with only the stem, notes.json and notes.yaml would each claim and remove the other's outputs.
        return _kept(loaded.path)
    if not needed:
        return cache_dir / OUTPUTS / _cache_name(request, loaded)
    if loaded is not None and loaded.recipe.model_fields_set <= {"stages"} and request.overrides == Overrides():
        raise RecipeError(f"{loaded.path} names neither a model nor a stage, so there is nothing to build.")
    if loaded is None and request.overrides.model is None and request.overrides.onnx is None:
        raise UsageError("No model is named.", advice="Give a recipe (-c), a model (-m) or an .onnx file (--onnx).")
    raise UsageError(
        "There is no output folder.", advice="Give -o/--output-dir, --use-cache, or output_dir in the recipe."
    )


def _kept(recipe: Path) -> Path:
    folder = recipe.parent / KEPT / recipe.name
    right, found = recipe.parent.resolve() / KEPT / recipe.name, folder.resolve()
    if os.path.normcase(found) != os.path.normcase(right):
        # The user did not name this folder, so a link that comes with the project could redirect writes and removals.
        raise UsageError(
            f"{folder} is reached by a link, to {found}, and nobody has named it as a place for results.",
            advice="Remove the link.",
        )
    return folder


def _cache_name(request: Request, loaded: LoadedRecipe | None) -> str:
    """Return a readable folder name that is unique for the request.

    It hashes absolute paths, because the same relative path means other files in another folder.
    """
    recipe, overrides = None if loaded is None else loaded.recipe, request.overrides
    # Imported here: a build that is loaded from the plan cache needs no recipe.
    from winml_dag.recipe.load import relocated

    model = overrides.model or (recipe.model if recipe else None) or "model"
    readable = re.sub(r"[^\w.-]+", "_", overrides.onnx.stem if overrides.onnx else model).strip("._")[-60:]
    texts = {name: value if value is None else str(value) for name, value in asdict(overrides).items()}
    if overrides.onnx is not None:
        texts["onnx"] = str(overrides.onnx.absolute())
    if overrides.model is not None:
        texts["model"] = str(relocated({"model": overrides.model}, Path())[0]["model"])
    written = None
    if loaded is not None and recipe is not None:
        written, _ = relocated(recipe.to_dict(), loaded.path.parent)
        if recipe.stages:
            # Arguments of commands may also be paths, but are not distinguishable from other arguments.
            written = {**written, "folder": str(loaded.path.parent.absolute())}
    text = canonical_json({"recipe": written, "overrides": texts})
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def has_only_stages(loaded: LoadedRecipe, overrides: Overrides) -> bool:
    """Whether neither the recipe nor the options of this run mention a model."""
    written = loaded.recipe.model_fields_set
    return written <= {"stages", "output_dir"} and bool(loaded.recipe.stages) and overrides == Overrides()


def folder_in(folder: Path, output_dir: Path) -> str:
    """Return *folder* relative to *output_dir*, as in the manifest there."""
    try:
        return Path(os.path.relpath(folder, output_dir.resolve())).as_posix()
    except ValueError:  # Windows has no relative path to another drive
        return folder.as_posix()
