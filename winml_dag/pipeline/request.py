"""What one call of ours asks for, as it comes from the command line or from Python, and the graph that it leads to."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.pipeline import standing
from winml_dag.pipeline.buildgraph import BuildGraph

if TYPE_CHECKING:
    from winml_dag.recipe.load import LoadedRecipe
    from winml_dag.store.local import LocalStore


@dataclass(frozen=True)
class Overrides:
    """What was asked for on the command line or in a call; None and False leave the decision to the recipe."""

    model: str | None = None
    onnx: Path | None = None
    task: str | None = None
    ep: str | None = None
    device: str | None = None
    precision: str | None = None
    quant: bool | None = None
    compile: bool | None = None
    optimize: bool | None = None
    analyze: bool | None = None
    random_weights: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Request:
    """A recipe (its file, or loaded already) and the options of this run.

    ``output_dir`` None with ``use_cache`` means a folder in the cache.
    """

    recipe: Path | LoadedRecipe | None
    overrides: Overrides
    output_dir: Path | None = None
    use_cache: bool = False


def plan_request(request: Request, store: LocalStore, *, download: bool, needs_folder: bool = True) -> BuildGraph:
    """The graph of the build that *request* means; *download* allows fetching a model from the hub.

    Without *needs_folder* a request that names no output folder is planned for one in the cache.

    Raises:
        UsageError, InputError: as for :func:`winml_dag.pipeline.resolve.resolve`, and for sources that cannot be read.
    """
    # A recipe that is not in a file has nothing that could tell that it has changed.
    recipe = request.recipe
    notable = recipe is None or isinstance(recipe, Path)
    if notable and (stands := standing.recall(request, store)) is not None:
        return stands
    began_ns = time.time_ns()
    # Imported here: a plan that stands needs neither recipe nor declarations, which take 0.1 s to import.
    from winml_dag.pipeline.plan import plan_build
    from winml_dag.pipeline.resolve import build_of

    build = build_of(request, store.folder, download=download, needs_folder=needs_folder)
    planned = plan_build(build, store.fingerprints)
    if notable and (needs_folder or request.output_dir or request.use_cache):
        standing.note(request, planned, store, began_ns)
    return planned
