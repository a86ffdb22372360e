"""Paths in a recipe: relative to the recipe's own folder, so that a recipe is independent of the current folder.

If a recipe is read as part of one in another folder, :func:`relocated` makes the paths absolute. It changes nothing
else, because two spellings of one setting would be two keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.file_reading import before_reading

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


def is_path_like(model: str) -> bool:
    """Return whether *model* can only be a path, not a hub id: ``./bert``, ``C:/models``, ``a/b/c``, ``resnet.onnx``.

    ``bert`` and ``org/bert`` can be both; a caller that may read the file system decides.
    """
    return model.casefold().endswith(".onnx") or not _HUB_ID.fullmatch(model)


def resolve_path(folder: Path, text: str) -> Path:
    """Return the path that *text* means in a recipe in *folder*; ``~`` is the user's home.

    Raises:
        InputError: there is no home folder for ``~``.
    """
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"The path {text!r} names a home folder that does not exist.") from None


# By section, the fields that are paths, and those that may also be ids on the hub.
_QUANT = ("calibration_data", "calibration_load_path", "load_path")
_QUANT_EITHER = ("model_id", "dataset_name")
_COMPILE = ("qnn_sdk_root",)
_EVAL = ("input_data", "reference_path")


def relocated(recipe: Mapping[str, object], folder: Path) -> tuple[dict[str, object], tuple[Path, ...]]:
    """Make the paths of *recipe*, which are relative to *folder*, absolute.

    Also returns the paths whose existence was checked to distinguish paths from other values. Values that the schema
    does not allow are not changed.
    """
    there = _There(folder.absolute())
    return _relocated(recipe, there), tuple(there.looked_at)


@dataclass(frozen=True)
class _There:
    """The folder that paths are relative to. ``looked_at``: paths whose existence was checked."""

    folder: Path
    looked_at: list[Path] = field(default_factory=list)

    def path(self, value: str) -> str:
        return value if value.startswith("~") else str(self.folder / value)

    def has(self, value: str, *, file: bool = False) -> bool:
        """Return whether a *file*, or anything, exists that *value* may mean."""
        path = self.folder / value
        before_reading(path)
        try:
            found = path.is_file() if file else path.exists()
        except (OSError, ValueError):
            return False
        self.looked_at.append(path)
        return found

    def is_path(self, value: str) -> bool:
        """Return whether *value*, a path or an id on the hub, is a path."""
        return is_path_like(value) or self.has(value)


def _relocated(recipe: Mapping[str, object], there: _There) -> dict[str, object]:
    whole = _part(recipe, there, either=("model",))
    whole |= _sections(whole, there)
    _within(whole, "loader", lambda section: _part(section, there, ("user_script",), ("path",)))
    _within(whole, "perf", lambda section: _part(section, there, ("input_data",)))
    _within(whole, "eval", lambda section: _eval(section, there))
    _within(whole, "components", lambda components: _components(components, there))
    return whole


def _sections(whole: Mapping[str, object], there: _There) -> dict[str, object]:
    """Relocate the sections that a component has as well as a recipe."""
    found = dict(whole)
    _within(found, "quant", lambda section: _part(section, there, _QUANT, _QUANT_EITHER))
    _within(found, "compile", lambda section: _compile(section, there))
    _within(found, "validate", lambda section: _part(section, there, ("input_data",)))
    return found


def _components(components: Mapping[str, object], there: _There) -> dict[str, object]:
    return {name: _sections(each, there) if isinstance(each, Mapping) else each for name, each in components.items()}


def _compile(section: Mapping[str, object], there: _There) -> dict[str, object]:
    found = _part(section, there, _COMPILE)
    _within(found, "quant_config", lambda quant: _part(quant, there, _QUANT, _QUANT_EITHER))
    _within(found, "ep_config", lambda nested: _compile(nested, there))
    _within(found, "provider_options", lambda options: _options(options, section, there))
    return found


def _options(options: Mapping[str, object], section: Mapping[str, object], there: _There) -> dict[str, object]:
    """Make options that name files absolute. Only providers know them, but an existing file is unambiguous."""
    keys = section.get("provider_option_file_keys")
    named = keys if isinstance(keys, list) else ()
    return {
        name: there.path(value)
        if isinstance(value, str) and (name in named or (Path(value).suffix and there.has(value, file=True)))
        else value
        for name, value in options.items()
    }


def _eval(section: Mapping[str, object], there: _There) -> dict[str, object]:
    found = _part(section, there, _EVAL, ("model_id",))
    _within(found, "dataset", lambda dataset: _part(dataset, there, ("label_mapping_file",), ("path",)))
    return found


def _within(whole: dict[str, object], name: str, change: Callable[[Mapping[str, object]], dict[str, object]]) -> None:
    section = whole.get(name)
    if isinstance(section, Mapping):
        whole[name] = change(section)


def _part(
    section: Mapping[str, object], there: _There, paths: tuple[str, ...] = (), either: tuple[str, ...] = ()
) -> dict[str, object]:
    found = dict(section)
    for name in (*paths, *either):
        value = found.get(name)
        if isinstance(value, str) and value and (name in paths or there.is_path(value)):
            found[name] = there.path(value)
    return found
