"""The Python API: the same builds as on the command line, with the same files and the same cache.

from winml_dag import build_hf_model
result = build_hf_model("./minilm", "out", config="recipe.yaml", precision="w8a16")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from winml_dag.engine.events import Observer
from winml_dag.errors import StageError
from winml_dag.pipeline.asked import Overrides
from winml_dag.pipeline.build import BuildOptions, BuildResult, build
from winml_dag.pipeline.request import Request, build_of
from winml_dag.recipe.load import LoadedRecipe, parse_recipe
from winml_dag.store.local import LocalStore, default_cache_dir

Config = str | Path | Mapping[str, Any]


def build_hf_model(
    model: str | Path | None,
    output_dir: str | Path,
    *,
    config: Config | None = None,
    task: str | None = None,
    ep: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    quant: bool | None = None,
    compile: bool | None = None,  # noqa: A002 - the stage's name
    optimize: bool | None = None,
    random_weights: bool = False,
    trust_remote_code: bool = False,
    force_rebuild: bool = False,
    jobs: int = 1,
    cache_dir: str | Path | None = None,
    observer: Observer | None = None,
) -> BuildResult:
    """Build a PyTorch model (a hub id or a folder; None takes the recipe's) into *output_dir*.

    *config* is a recipe: its file, or the same as a mapping, whose paths are then relative to the current folder.
    Returns what became of every stage.

    Raises:
        StageError: when a stage failed.
        RecipeError, UsageError, InputError, StoreError: as their names say.
    """
    overrides = Overrides(
        model=None if model is None else str(model),
        task=task,
        ep=ep,
        device=device,
        precision=precision,
        quant=quant,
        compile=compile,
        optimize=optimize,
        random_weights=random_weights,
        trust_remote_code=trust_remote_code,
    )
    return _build(overrides, output_dir, config, BuildOptions(jobs, rebuild=force_rebuild), cache_dir, observer)


def build_onnx_model(
    onnx: str | Path,
    output_dir: str | Path,
    *,
    config: Config | None = None,
    task: str | None = None,
    ep: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    quant: bool | None = None,
    compile: bool | None = None,  # noqa: A002 - the stage's name
    optimize: bool | None = None,
    force_rebuild: bool = False,
    jobs: int = 1,
    cache_dir: str | Path | None = None,
    observer: Observer | None = None,
) -> BuildResult:
    """Build a model that is ONNX already into *output_dir*: everything after export. See :func:`build_hf_model`."""
    overrides = Overrides(
        onnx=Path(onnx),
        task=task,
        ep=ep,
        device=device,
        precision=precision,
        quant=quant,
        compile=compile,
        optimize=optimize,
    )
    return _build(overrides, output_dir, config, BuildOptions(jobs, rebuild=force_rebuild), cache_dir, observer)


def _build(
    overrides: Overrides,
    output_dir: str | Path,
    config: Config | None,
    options: BuildOptions,
    cache_dir: str | Path | None,
    observer: Observer | None,
) -> BuildResult:
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    wanted = build_of(Request(_recipe(config), overrides, Path(output_dir)), folder, download=True)
    result = build(wanted, LocalStore(folder), options, observer=observer)
    for view in result.stages:
        if view.result is not None and view.result.error:
            raise StageError(f"{view.id} failed: {view.result.error}", advice=view.result.advice)
    return result


def _recipe(config: Config | None) -> Path | LoadedRecipe | None:
    if config is None or isinstance(config, Path):
        return config
    if isinstance(config, str):
        return Path(config)
    name = "config"
    return LoadedRecipe(Path.cwd() / name, parse_recipe(json.dumps(config), name, "json"), "json")
