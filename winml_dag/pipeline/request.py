"""What one call of ours asks for, as it comes from the command line or from Python, and the build that it means."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from winml_dag.canonical import canonical_json
from winml_dag.engine.config import config_json
from winml_dag.errors import UsageError
from winml_dag.pipeline.asked import Overrides
from winml_dag.pipeline.resolve import resolve
from winml_dag.pipeline.variant import Build
from winml_dag.recipe.dump import to_json
from winml_dag.recipe.load import LoadedRecipe, load_recipe

# In the cache folder, for those who want results kept there (--use-cache) instead of in a folder of their own.
OUTPUTS = "outputs"


@dataclass(frozen=True)
class Request:
    """A recipe (its file, or loaded already) and the options of this run.

    ``output_dir`` None with ``use_cache`` means a folder in the cache.
    """

    recipe: Path | LoadedRecipe | None
    overrides: Overrides
    output_dir: Path | None = None
    use_cache: bool = False


def build_of(request: Request, cache_dir: Path, *, download: bool, needs_folder: bool = True) -> Build:
    """The build that *request* means. Without *needs_folder* one that names no output folder uses one in the cache.

    Raises:
        UsageError, InputError: as for :func:`winml_dag.pipeline.resolve.resolve`; also when no output folder is named.
    """
    recipe = request.recipe
    loaded = load_recipe(recipe) if isinstance(recipe, Path) else recipe
    folder = _output_dir(request, loaded, cache_dir, needs_folder)
    return resolve(loaded, request.overrides, folder, download=download)


def _output_dir(request: Request, loaded: LoadedRecipe | None, cache_dir: Path, needed: bool) -> Path:
    if request.use_cache:
        if request.output_dir is not None:
            raise UsageError("-o/--output-dir and --use-cache exclude each other.", advice="Give one of them.")
        return cache_dir / OUTPUTS / _cache_name(request, loaded)
    if request.output_dir is not None:
        return request.output_dir
    if loaded is not None and loaded.recipe.output_dir is not None:
        return loaded.resolve_path(loaded.recipe.output_dir)
    if not needed:
        return cache_dir / OUTPUTS / _cache_name(request, loaded)
    raise UsageError(
        "There is no output folder.", advice="Give -o/--output-dir, --use-cache, or output_dir in the recipe."
    )


def _cache_name(request: Request, loaded: LoadedRecipe | None) -> str:
    """A folder name for what is asked: readable, and different for anything that is asked differently."""
    recipe = None if loaded is None else loaded.recipe
    model = str(request.overrides.onnx or request.overrides.model or (recipe.model if recipe else None) or "model")
    overrides = config_json(request.overrides) if request.overrides.onnx is None else _with_text_path(request.overrides)
    asked = canonical_json({"recipe": None if recipe is None else to_json(recipe), "overrides": overrides})
    readable = re.sub(r"[^\w.-]+", "_", Path(model).stem if request.overrides.onnx else model).strip("._")[-60:]
    return f"{readable}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"


def _with_text_path(overrides: Overrides) -> dict[str, bool | str | None]:
    return {**asdict(overrides), "onnx": str(overrides.onnx)}
