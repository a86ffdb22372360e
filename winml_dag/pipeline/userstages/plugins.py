"""Stages that installed packages bring: entry points in the group ``winml_dag.stages``, each naming a declaration.

Looked for only when a recipe says ``uses:``, and without ``importlib.metadata``, whose import and whose reading of
every package's metadata take longer than an up-to-date build: one small file of each package says it all.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.config import config_json, read_config
from winml_dag.engine.stage import Stage
from winml_dag.explanation import explanation
from winml_dag.recipe.spelling import known_instead

GROUP = "winml_dag.stages"


@dataclass(frozen=True)
class Plugin:
    """A stage by the name that recipes use: its declaration is ``target`` (``package.module:ATTRIBUTE``)."""

    target: str
    distribution: str
    version: str


class PluginProblem(Exception):
    """What is wrong with a plug-in, or with what a recipe gives it, in words."""


def load_plugin(name: str) -> tuple[Plugin, Stage]:
    """The plug-in *name* and its declaration, which is imported.

    Raises:
        PluginProblem: when there is none, or importing it fails.
    """
    known = _plugins(tuple(sys.path))
    if name not in known:
        instead = known_instead(name, sorted(known)) if known else "; no installed package brings any"
        raise PluginProblem(f"there is no plug-in {name!r}{instead}")
    plugin = known[name]
    stage = _attribute(name, plugin.target)
    if not isinstance(stage, Stage):
        raise PluginProblem(f"{plugin.target} of {plugin.distribution} is not the declaration of a stage")
    return plugin, stage


def plugin_config(name: str, stage: Stage, given: JsonObject) -> JsonObject:
    """Every field of the plug-in's config, defaults included; as given, when it declares no class for it.

    Raises:
        PluginProblem: for a field that is missing or unknown, or that the config itself refuses.
    """
    if not stage.config:
        return given
    kind = _attribute(name, stage.config)
    if not isinstance(kind, type):
        raise PluginProblem(f"{stage.config} is not a class")
    try:
        config: object = read_config(kind, given)
        return config_json(config)  # type: ignore[arg-type]  # read_config has seen that it is a dataclass
    except (TypeError, ValueError) as error:
        raise PluginProblem(str(error)) from error


def _attribute(name: str, target: str) -> object:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # somebody else's code, of which anything may be expected
        raise PluginProblem(f"plug-in {name!r}: {target} cannot be imported: {explanation(error)}") from error


@cache
def _plugins(path: tuple[str, ...]) -> dict[str, Plugin]:
    """All plug-ins by name; the first folder on ``sys.path`` wins, as it does for imports."""
    found: dict[str, Plugin] = {}
    for folder in path:
        for entry in sorted(_metadata_folders(folder or ".")):
            for name, plugin in _entry_points(Path(folder or ".", entry)):
                found.setdefault(name, plugin)
    return found


def _metadata_folders(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    except OSError:
        return []


def _entry_points(metadata: Path) -> Iterator[tuple[str, Plugin]]:
    try:
        text = (metadata / "entry_points.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if GROUP not in text:
        return
    # The name of the folder is fixed by the packaging specification: name-version.dist-info.
    distribution, _, version = metadata.stem.partition("-")
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield name.strip(), Plugin(target.split("[", 1)[0].strip(), distribution, version.split("-", 1)[0])
