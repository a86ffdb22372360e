"""What does the work of a user's stage: the program that a command begins with, the module that a function lies in.

Both are found without being run or imported, and their content is part of the key.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from winml_dag.engine.toolchain import distribution_version
from winml_dag.pipeline.userstages import Tools
from winml_dag.recipe.spelling import did_you_mean

_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


class Programs:
    """Programs by name, looked up once for each name and search path."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Path | None] = {}

    def find(self, program: str, environment: Mapping[str, str]) -> Path | None:
        """Where *program* (an absolute path or a name on PATH) is; None when it is nowhere."""
        search = environment.get("PATH", os.environ.get("PATH", os.defpath))
        if (program, search) not in self._found:
            found = shutil.which(program, path=search)
            self._found[program, search] = None if found is None else Path(found)
        return self._found[program, search]


class Functions:
    """Modules by name, looked up once each: in the recipe's folder first, then where Python looks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Path | None] = {}

    def find(self, target: str) -> Tools | str:
        """What the key of a stage that runs *target* (``package.module:function``) is made from, or what is wrong."""
        match = _TARGET.fullmatch(target)
        if match is None:
            return f"{target!r} is not of the form package.module:function"
        module, function = match[1], match[2]
        path = self._module(module)
        if path is None:
            return f"there is no module {module} beside the recipe or among what is installed"
        if path.suffix == ".py" and (problem := _lacks(path, function)):
            return problem
        versions = {"python": platform.python_version()}
        distribution = module.split(".", 1)[0]
        if not path.is_relative_to(self._folder) and (version := distribution_version(distribution)):
            versions[distribution] = version
        return Tools(versions, {f"module {module}": path})

    def _module(self, module: str) -> Path | None:
        if module not in self._found:
            self._found[module] = _module_file(module, [str(self._folder), *filter(None, sys.path)])
        return self._found[module]


def _module_file(module: str, search: list[str]) -> Path | None:
    from importlib.machinery import EXTENSION_SUFFIXES

    relative = module.replace(".", os.sep)
    for folder in search:
        package = os.path.join(folder, relative)  # noqa: PTH118 - joined for every folder that is searched
        for ending in (f"{os.sep}__init__.py", ".py", *EXTENSION_SUFFIXES):
            if os.path.isfile(package + ending):  # noqa: PTH113
                return Path(package + ending)
    return None


def _lacks(path: Path, function: str) -> str | None:
    """What is wrong when the module cannot have *function*: its text does not even mention it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if re.search(rf"\b{function}\b", text):
        return None
    names = re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)
    return f"{path.name} has no function {function!r}{did_you_mean(function, names)}"
