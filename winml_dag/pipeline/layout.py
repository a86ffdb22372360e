"""The output folder of a build: which files the build writes there, their names, and which folder it is.

The names are those of winml-cli, so that tools for its results also find these. The file names of a stage are fixed, so
that equal work has equal bytes. In a folder with several components, each file name is prefixed with its component.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.canonical import JsonObject, canonical_json, mapping
from winml_dag.errors import RecipeError, UsageError
from winml_dag.names import KEPT
from winml_dag.pipeline.buildgraph import BuildGraph, prefixed
from winml_dag.pipeline.request import Overrides
from winml_dag.pipeline.search import round_of
from winml_dag.stages import artifact_types

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
