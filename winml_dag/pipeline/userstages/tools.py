"""What does the work of a user's stage: the program that a command begins with, the module that a function lies in.

Both are found without being run or imported, and their content is part of the key.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from winml_dag.engine.toolchain import distribution_version
from winml_dag.pipeline.userstages.declared import Tools
from winml_dag.readlog import before_reading
from winml_dag.recipe.spelling import did_you_mean

_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


class Programs:
    """Programs by name, looked up once for each name and search path.

    Attributes:
        passed_over: where a program was looked for, and was not, before it was found.
    """

    def __init__(self) -> None:
        self.passed_over: set[str] = set()
        self._found: dict[tuple[str, str], Path | None] = {}

    def find(self, program: str, environment: Mapping[str, str]) -> Path | None:
        """Where *program* (an absolute path or a name on PATH) is; None when it is nowhere."""
        search = environment.get("PATH", os.environ.get("PATH", os.defpath))
        if (program, search) not in self._found:
            found = shutil.which(program, path=search)
            self._found[program, search] = None if found is None else Path(found)
            self.passed_over.update(_passed_over(program, search, found))
        return self._found[program, search]


def _passed_over(program: str, search: str, found: str | None) -> Iterator[str]:
    for folder in search.split(os.pathsep):
        candidate = os.path.join(folder, program)  # noqa: PTH118 - compared with a text
        if found is None or candidate == found or found == program:
            return
        if folder and not os.path.lexists(candidate):
            yield candidate


class Functions:
    """Modules by name, looked up once each: in the recipe's folder first, then where Python looks.

    Attributes:
        passed_over: where a module was not, in the recipe's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.passed_over: set[str] = set()
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
            own = list(_candidates(module, str(self._folder)))
            at = next((place for place, candidate in enumerate(own) if os.path.isfile(candidate)), len(own))  # noqa: PTH113
            # Also those before the one that was found: a package comes before a module of the same name.
            self.passed_over.update(own[:at])
            searched = list(filter(None, sys.path))
            self._found[module] = Path(own[at]) if at < len(own) else _module_file(module, searched)
        return self._found[module]


def _module_file(module: str, search: list[str]) -> Path | None:
    candidates = (candidate for folder in search for candidate in _candidates(module, folder))
    found = next(filter(os.path.isfile, candidates), None)
    return None if found is None else Path(found)


def _candidates(module: str, folder: str) -> Iterator[str]:
    from importlib.machinery import EXTENSION_SUFFIXES

    package = os.path.join(folder, module.replace(".", os.sep))  # noqa: PTH118
    yield from (package + ending for ending in (f"{os.sep}__init__.py", ".py", *EXTENSION_SUFFIXES))


def _lacks(path: Path, function: str) -> str | None:
    """What is wrong when the module cannot have *function*: its text does not even mention it."""
    before_reading(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if re.search(rf"\b{function}\b", text):
        return None
    names = re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)
    return f"{path.name} has no function {function!r}{did_you_mean(function, names)}"
