"""The output folder of a build, which an option, the cache, the recipe or its stages may decide."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import asdict
from pathlib import Path

from winml_dag.canonical import JsonObject, canonical_json
from winml_dag.errors import RecipeError, UsageError
from winml_dag.names import KEPT
from winml_dag.pipeline.request import Overrides, Request
from winml_dag.recipe.load import LoadedRecipe, relocated

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
    if request.output_dir is not None:
        return request.output_dir
    if loaded is not None and loaded.recipe.output_dir is not None:
        return loaded.resolve_path(loaded.recipe.output_dir)
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
    model = overrides.model or (recipe.model if recipe else None) or "model"
    readable = re.sub(r"[^\w.-]+", "_", overrides.onnx.stem if overrides.onnx else model).strip("._")[-60:]
    texts = {name: value if value is None else str(value) for name, value in asdict(overrides).items()}
    if overrides.onnx is not None:
        texts["onnx"] = str(overrides.onnx.absolute())
    if overrides.model is not None:
        texts["model"] = str(relocated({"model": overrides.model}, Path())[0]["model"])
    text = canonical_json({"recipe": None if loaded is None else _recipe_json(loaded), "overrides": texts})
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _recipe_json(loaded: LoadedRecipe) -> JsonObject:
    value, _ = relocated(loaded.recipe.to_dict(), loaded.path.parent)
    # Arguments of commands may also be paths, but are not distinguishable from other arguments.
    return {**value, "folder": str(loaded.path.parent.absolute())} if loaded.recipe.stages else value


def has_only_stages(loaded: LoadedRecipe, overrides: Overrides) -> bool:
    """Whether neither the recipe nor the options of this run mention a model."""
    written = loaded.recipe.model_fields_set
    return written <= {"stages", "output_dir"} and bool(loaded.recipe.stages) and overrides == Overrides()
