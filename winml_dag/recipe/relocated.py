"""The paths in a recipe that is read as a part of one in another folder: made absolute, so that they mean the same.

Only those, since a value that is no path must stay as it is: two spellings of one setting would be two keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from winml_dag.recipe.paths import is_path_like

# By section, the fields that are paths, and those that may as well be ids on the hub.
_QUANT = ("calibration_data", "calibration_load_path")
_QUANT_EITHER = ("model_id", "dataset_name")
_COMPILE = ("qnn_sdk_root",)
_EVAL = ("input_data", "reference_path")


def relocated(recipe: Mapping[str, object], folder: Path) -> dict[str, object]:
    """*recipe*, whose paths are relative to *folder*, with absolute ones. What is not as the schema has it stays."""
    whole = _part(recipe, folder, either=("model",))
    whole |= _sections(whole, folder)
    _within(whole, "loader", lambda section: _part(section, folder, ("user_script",), ("path",)))
    _within(whole, "perf", lambda section: _part(section, folder, ("input_data",)))
    _within(whole, "eval", lambda section: _eval(section, folder))
    _within(whole, "components", lambda components: _components(components, folder))
    return whole


def _sections(whole: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Those that a component has as well as a recipe."""
    found = dict(whole)
    _within(found, "quant", lambda section: _part(section, folder, _QUANT, _QUANT_EITHER))
    _within(found, "compile", lambda section: _compile(section, folder))
    _within(found, "validate", lambda section: _part(section, folder, ("input_data",)))
    return found


def _components(components: Mapping[str, object], folder: Path) -> dict[str, object]:
    return {name: _sections(each, folder) if isinstance(each, Mapping) else each for name, each in components.items()}


def _compile(section: Mapping[str, object], folder: Path) -> dict[str, object]:
    found = _part(section, folder, _COMPILE)
    _within(found, "quant_config", lambda quant: _part(quant, folder, _QUANT, _QUANT_EITHER))
    _within(found, "ep_config", lambda nested: _compile(nested, folder))
    _within(found, "provider_options", lambda options: _options(options, section, folder))
    return found


def _options(options: Mapping[str, object], section: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Which options name files, the providers know. One that there is a file for here can mean nothing else."""
    keys = section.get("provider_option_file_keys")
    named = keys if isinstance(keys, list) else ()
    return {
        name: _path(value, folder)
        if isinstance(value, str) and (name in named or (Path(value).suffix and (folder / value).is_file()))
        else value
        for name, value in options.items()
    }


def _eval(section: Mapping[str, object], folder: Path) -> dict[str, object]:
    found = _part(section, folder, _EVAL, ("model_id",))
    _within(found, "dataset", lambda dataset: _part(dataset, folder, ("label_mapping_file",), ("path",)))
    return found


def _within(whole: dict[str, object], name: str, change: Callable[[Mapping[str, object]], dict[str, object]]) -> None:
    section = whole.get(name)
    if isinstance(section, Mapping):
        whole[name] = change(section)


def _part(
    section: Mapping[str, object], folder: Path, paths: tuple[str, ...] = (), either: tuple[str, ...] = ()
) -> dict[str, object]:
    found = dict(section)
    for name in (*paths, *either):
        value = found.get(name)
        if isinstance(value, str) and value and (name in paths or _is_path_in(value, folder)):
            found[name] = _path(value, folder)
    return found


def _is_path_in(value: str, folder: Path) -> bool:
    """Whether *value*, a path or an id on the hub, is a path to a recipe in *folder*."""
    try:
        return is_path_like(value) or (folder / value).exists()
    except (OSError, ValueError):
        return False


def _path(value: str, folder: Path) -> str:
    return value if value.startswith("~") else str(folder.absolute() / value)
