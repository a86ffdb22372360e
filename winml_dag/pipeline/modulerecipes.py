"""The recipes that ``config --module`` writes: one for each module of a class that a model has, to be built alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from winml_dag.canonical import JsonObject, JsonValue
from winml_dag.engine.config import config_json
from winml_dag.engine.stage import Source
from winml_dag.pipeline.answer import answer_of
from winml_dag.stages.export import CAPTURE, MODEL_SOURCE, SCRIPT_SOURCE, CaptureConfig, ExportFields, LoaderFields

# What of a whole model's recipe says nothing of a module: its data are not what a module is called with.
_OF_THE_MODEL = ("eval", "components", "output_dir")
_OF_ITS_TENSORS = ("dynamic_axes", "batch_size", "shape_config")
_OF_ITS_DATA = (
    "task", "model_id", "model_type", "dataset_name", "dataset_subset", "dataset_split", "columns_mapping",
    "calibration_data", "calibration_load_path", "calibration_save_path", "save_calibration", "node_overrides",
    "nodes_to_exclude",
)  # fmt: skip


@dataclass(frozen=True)
class ModuleRecipes:
    """``recipes``: one for each module that can be called alone, in the order in which the model calls them;
    ``left_out``: by path, why others have none.
    """

    recipes: tuple[JsonObject, ...]
    left_out: Mapping[str, str]


def module_recipes(
    settings: JsonObject,
    loader: LoaderFields,
    export: ExportFields,
    model: Source | None,
    module_class: str,
    *,
    script: Source | None = None,
) -> ModuleRecipes:
    """A recipe for each module of *module_class*, each with what the module is called with when the model runs.

    Args:
        settings: the recipe for the whole model, with everything decided.
        loader, export: how that model is loaded and called; *model* and *script* are where from.

    Raises:
        StageError: when the model cannot be loaded or called, or has no such modules.
    """
    asked = config_json(CaptureConfig(loader, export, module_class))
    told = answer_of(CAPTURE, asked, {MODEL_SOURCE: model, SCRIPT_SOURCE: script})
    found = _objects(told.get("modules"))
    left_out = {path: str(why) for path, why in _section(told, "left_out").items()}
    return ModuleRecipes(tuple(_recipe(settings, loader, module_class, module) for module in found), left_out)


def _recipe(settings: JsonObject, of_model: LoaderFields, module_class: str, module: JsonObject) -> JsonObject:
    whole = {name: value for name, value in settings.items() if name not in _OF_THE_MODEL}
    loader = {
        **_section(settings, "loader"),
        "model_type": of_model.model_type,  # winml-cli wants it
        "model_class": module_class,
        "module_path": module["path"],
    }
    export: dict[str, JsonValue] = {
        **{name: value for name, value in _section(settings, "export").items() if name not in _OF_ITS_TENSORS},
        "input_tensors": module["input_tensors"],
        "output_tensors": [{"name": name} for name in _texts(module["outputs"])],
    }
    if module["arguments"]:
        export["module_arguments"] = module["arguments"]
    quant = settings.get("quant")
    if isinstance(quant, Mapping):
        whole["quant"] = {name: value for name, value in quant.items() if name not in _OF_ITS_DATA}
    return {**whole, "loader": loader, "export": export}


def _section(settings: JsonObject, name: str) -> JsonObject:
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}


def _objects(value: JsonValue) -> list[JsonObject]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list | tuple) else []


def _texts(value: JsonValue) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else []
