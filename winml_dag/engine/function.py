"""The worker's side of a user's function: ``function(inputs, outputs)``, or with a config as third argument.

User code does not depend on classes of this package: inputs and outputs are paths by name, the config is plain JSON.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Workspace
from winml_dag.errors import StageError

# The ``work`` of a stage that is a user's function.
CALL = "winml_dag.engine.function:call"


def call(config: JsonObject, workspace: Workspace) -> JsonObject:
    """Import and call the function in ``config["run"]``. The current folder comes first on the search path.

    Raises:
        StageError: when the function does not exist, is in another file than the key says, returns something other than
            metrics, or its folder does not exist.
    """
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise StageError("The folder that it runs in is gone.", advice="Build again when it is back.") from None
    sys.path.insert(0, str(folder))
    reference = str(config["run"])
    module, _, name = reference.partition(":")
    function = getattr(importlib.import_module(module), name, None)
    _check_files({name: folder / path for name, path in workspace.machine_facts.items()})
    if not callable(function):
        raise StageError(f"{module} has no function {name!r}.", advice="Check run: in the recipe.")
    arguments = [workspace.inputs, workspace.outputs, *([config["config"]] if config.get("config") is not None else [])]
    metrics = function(*arguments)
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise StageError(
            f"{reference} returned {type(metrics).__name__}.", advice="Return a dict of metrics, or nothing."
        )
    return metrics


def _check_files(expected: Mapping[str, Path]) -> None:
    """Raise StageError when a module was not imported from its *expected* file.

    Another module may come before it on the search path, or a package may redirect the import at run time.
    """
    for module, path in expected.items():
        imported = getattr(sys.modules.get(module), "__file__", None)
        try:
            is_same = imported is not None and path.samefile(imported)
        except FileNotFoundError:  # removed meanwhile
            is_same = False
        if not is_same:
            raise StageError(
                f"{module} was imported from {imported}, and not from {path}, which the key has.",
                advice="Remove one of the two, or give the module another name.",
            )
