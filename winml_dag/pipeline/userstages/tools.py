"""What does the work of a declared stage: the program of a command, or the module of a function.

Both are found without being run or imported, and their content is part of the key.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.canonical import JsonObject
from winml_dag.engine.stage import Stage, config_json, read_config
from winml_dag.errors import UsageError, did_you_mean, known_instead
from winml_dag.file_reading import before_reading
from winml_dag.installed import EntryPoint, distribution_version, entry_points, load_object

_TARGET = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


# The prefix of module names in a toolchain.
MODULE = "module "


@dataclass(frozen=True)
class Tools:
    """What a stage's output depends on other than inputs: values for its key, and files whose digests belong there."""

    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)


class Programs:
    """Programs by name, looked up once for each name and search path.

    Attributes:
        passed_over: paths without a file that precede the program in the search.
        programs: the programs found, and non-executable files that precede them.
    """

    def __init__(self) -> None:
        self.passed_over: set[str] = set()
        self.programs: set[str] = set()
        self._found: dict[tuple[str, str], Path | None] = {}

    def find(self, program: str, environment: Mapping[str, str]) -> Path | None:
        """Return the path of *program* (an absolute path or a name on PATH); None if it is not found."""
        search = environment.get("PATH", os.environ.get("PATH", os.defpath))
        if (program, search) not in self._found:
            candidates = [os.path.join(folder, program) for folder in search.split(os.pathsep) if folder]  # noqa: PTH118
            for candidate in candidates:
                before_reading(candidate)
            found = shutil.which(program, path=search)
            self._found[program, search] = None if found is None else Path(found)
            if found is not None:
                self.programs.add(found)
            if found in candidates:
                before = set(candidates[: candidates.index(found)])
                there = set(filter(os.path.exists, before))
                self.programs |= there
                self.passed_over |= before - there
        return self._found[program, search]


class Functions:
    """Modules by name, looked up once each: in the recipe's folder first, then on Python's path.

    Attributes:
        passed_over: paths without a file that precede the module in the search.
    """

    def __init__(self, folder: Path) -> None:
        self.passed_over: set[str] = set()
        self._search = [str(folder), *filter(None, sys.path)]
        self._folder = folder
        self._found: dict[str, Mapping[str, Path] | None] = {}

    def find(self, target: str) -> Tools | str:
        """Return what the key of a stage that runs *target* (``package.module:function``) has, or what is wrong."""
        match = _TARGET.fullmatch(target)
        if match is None:
            return f"{target!r} is not of the form package.module:function"
        module, function = match[1], match[2]
        if module not in self._found:
            self._found[module] = self._files(module)
        files = self._found[module]
        if files is None:
            return f"there is no module {module} beside the recipe or among what is installed"
        path = files[module]
        if path.suffix == ".py" and (problem := _lacks(path, function)):
            return problem
        versions = {"python": platform.python_version()}
        distribution = module.split(".", 1)[0]
        if not path.is_relative_to(self._folder) and (version := distribution_version(distribution)):
            versions[distribution] = version
        return Tools(versions, {f"{MODULE}{name}": file for name, file in files.items()})

    def _files(self, module: str) -> Mapping[str, Path] | None:
        """Return the files that Python runs to import *module*: those of it and its parent packages, by module."""
        files: dict[str, Path] = {}
        search: list[str] | None = self._search
        parts = module.split(".")
        for depth, part in enumerate(parts, 1):
            file, search = self._find(part, search or [])
            if file is not None:
                files[".".join(parts[:depth])] = Path(file)
        return files if module in files else None

    def _find(self, part: str, search: list[str]) -> tuple[str | None, list[str] | None]:
        """Return the file of the module *part* in one of the folders *search*, and the search path of its submodules.

        As in Python: in each folder a package takes precedence over a module, and compiled code over source. A folder
        without code only counts when no other folder has anything of that name.
        """
        from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES

        suffixes = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)
        spaces: list[str] = []
        for folder in search:
            name = f"{folder}{os.sep}{part}"
            package = f"{name}{os.sep}__init__"
            for candidate in (*(package + ending for ending in suffixes), *(name + ending for ending in suffixes)):
                if os.path.isfile(candidate):  # noqa: PTH113
                    return candidate, [name] if candidate.startswith(package) else None
                self.passed_over.add(candidate)
            if os.path.isdir(name):  # noqa: PTH112
                spaces.append(name)
        return None, spaces or None


def _lacks(path: Path, function: str) -> str | None:
    """Return an error if the module cannot have *function* because its text does not mention it."""
    before_reading(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if re.search(rf"\b{function}\b", text):
        return None
    names = re.findall(r"^(?:async )?def (\w+)", text, re.MULTILINE)
    return f"{path.name} has no function {function!r}{did_you_mean(function, names)}"


class PluginProblem(Exception):
    """An error in a plug-in, or in what a recipe gives it, with a message."""


def load_plugin(name: str) -> tuple[EntryPoint, Stage]:
    """Return the plug-in *name* and its declaration, which is imported.

    Raises:
        PluginProblem: when there is none, or importing it fails.
    """
    known = entry_points("winml_dag.stages", tuple(sys.path))
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
