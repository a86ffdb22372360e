"""Stages from installed packages: entry points in the group ``winml_dag.stages``, each naming a declaration.

They are only searched when a recipe has ``uses:``.
"""

from __future__ import annotations

import sys

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Stage, config_json, read_config
from winml_dag.entrypoints import EntryPoint, entry_points, load_object
from winml_dag.errors import UsageError
from winml_dag.recipe.document import known_instead

GROUP = "winml_dag.stages"


class PluginProblem(Exception):
    """An error in a plug-in, or in what a recipe gives it, with a message."""


def load_plugin(name: str) -> tuple[EntryPoint, Stage]:
    """Return the plug-in *name* and its declaration, which is imported.

    Raises:
        PluginProblem: when there is none, or importing it fails.
    """
    known = entry_points(GROUP, tuple(sys.path))
    if name not in known:
        instead = known_instead(name, sorted(known)) if known else "; no installed package brings any"
        raise PluginProblem(f"there is no plug-in {name!r}{instead}")
    plugin = known[name]
    stage = _attribute(name, plugin.target)
    if not isinstance(stage, Stage):
        raise PluginProblem(f"{plugin.target} of {plugin.distribution} is not the declaration of a stage")
    return plugin, stage


def plugin_config(name: str, stage: Stage, given: JsonObject) -> JsonObject:
    """Return every field of the plug-in's config, including defaults; *given* unchanged if it declares no config class.

    Raises:
        PluginProblem: for a field that is missing or unknown, or that the config itself rejects.
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
    try:
        return load_object(name, target)
    except UsageError as error:
        raise PluginProblem(error.message) from error
