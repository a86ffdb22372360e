"""The settings of a build: a recipe with everything decided, written to ``winml_build_config.json``.

Building from it gives the same keys on any machine that has the same model and tools: paths are relative to the
output folder, where the file will lie, and nothing is left to ``auto``.
"""

from __future__ import annotations

import os
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.pipeline.asked import Asked, Model
from winml_dag.pipeline.variant import Build, Skip
from winml_dag.recipe.dump import to_json
from winml_dag.recipe.paths import resolve_path
from winml_dag.recipe.schema import Quant, Recipe
from winml_dag.stages.compile import CompileConfig

# Decided in other fields (precision in quant), or no part of what is built (output_dir).
_DECIDED = ("precision", "output_dir")


def settings_of(build: Build, asked: Asked, model: Model, quant: Quant | None) -> JsonObject:
    """The recipe that gives *build* again; *quant* is its quantization as decided."""
    settings: dict[str, JsonValue] = {
        name: value for name, value in to_json(asked.recipe).items() if name not in _DECIDED
    }
    loader = asked.recipe.loader.model_copy(update={"task": build.summary.task, "random_weights": asked.random_weights})
    if build.summary.origin == "onnx":
        settings["export"] = None
    return {
        **settings,
        **({} if asked.random_weights is not None and model.onnx is None else {"model": _model(model, build)}),
        "ep": build.summary.ep,
        "device": build.summary.device,
        "loader": {name: value for name, value in _json("loader", loader).items() if name != "path"},
        "optim": settings.get("optim") or {},
        "quant": None if quant is None else _quant(quant, asked, build.summary.output_dir),
        "compile": None if isinstance(build.compile, Skip) else _compile(build.compile, settings.get("compile")),
        "skip_optimize": isinstance(build.optimize, Skip),
        "auto": False,
    }


def _json(section: str, value: object) -> dict[str, JsonValue]:
    """One section as JSON, through the recipe that it would stand in."""
    found = to_json(Recipe().model_copy(update={section: value}))[section]
    return dict(found) if isinstance(found, dict) else {}


def _model(model: Model, build: Build) -> str:
    if model.onnx is not None:
        return _portable(model.onnx.path, build.summary.output_dir)
    if model.folder is not None and not model.folder.from_hub:
        return _portable(model.folder.folder, build.summary.output_dir)
    return model.name


def _quant(quant: Quant, asked: Asked, output_dir: Path) -> JsonObject:
    settings = _json("quant", quant)
    data = settings.get("calibration_data")
    if isinstance(data, str):
        settings["calibration_data"] = _portable(resolve_path(asked.base, data), output_dir)
    return settings


def _compile(config: CompileConfig, written: JsonValue) -> JsonObject:
    decided = config.compile
    return {
        **(written if isinstance(written, dict) else {}),
        "execution_provider": decided.execution_provider,
        "device": decided.device,
        "provider_options": decided.provider_options,
        "embed_context": decided.embed_context,
    }


def _portable(path: Path, folder: Path) -> str:
    """*path* as seen from *folder*, with ``/`` on every system."""
    try:
        return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    except ValueError:  # on Windows there is no relative path to another drive
        return path.resolve().as_posix()
