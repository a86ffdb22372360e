"""A command as it is started: placeholders filled in, its program found, and the little environment that it gets.

Whatever else is in the user's environment would reach the bytes without being in the key.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.errors import StageError

# Doubled braces stand for themselves; all others that are no placeholder belong to the shell, awk or JSON.
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(inputs|outputs|config)\.([^{}\s]*)\}")

# What programs need to be found and to find their own files. None of it is in a key, so nothing that shapes results is
# among it: no library path, no environment of a Python, no user. Who needs these declares them, and then the key has
# them.
_KEPT = ("PATH", "HOME")
LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# The exit code of shells and of the system's loader where a program, or a library that it needs, is not found.
CANNOT_RUN = 127
_KEPT_ON_WINDOWS = (
    "PATH",
    "PATHEXT",
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "WINDIR",
    "COMSPEC",
    "USERPROFILE",
    "APPDATA",
    "LOCALAPPDATA",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
)
_FIXED = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "utf-8",
}


def fill(text: str, names: Mapping[str, Mapping[str, str]]) -> str:
    """*text* with ``{inputs.SLOT}``, ``{outputs.SLOT}`` and ``{config.NAME}`` replaced by what *names* has by section.

    ``{{`` and ``}}`` stand for braces; all other braces stay as they are, since shells and awk need them.
    """
    if "{" not in text and "}" not in text:
        return text

    def filled(match: re.Match[str]) -> str:
        section, name = match.groups()
        if section is None:
            return match[0][0]
        # Unknown ones were refused when the recipe was planned.
        return names[section].get(name, match[0])

    return PLACEHOLDER.sub(filled, text)


def config_texts(config: JsonObject) -> dict[str, str]:
    """The values that ``{config.NAME}`` stands for: texts as they are, all else as JSON."""
    values = config.get("config")
    return {name: _text(value) for name, value in values.items()} if isinstance(values, Mapping) else {}


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def minimal_environment() -> dict[str, str]:
    """What every command gets, besides a temporary folder and what its stage declares."""
    kept = _KEPT_ON_WINDOWS if sys.platform == "win32" else _KEPT
    return {name: os.environ[name] for name in kept if name in os.environ} | _FIXED


def temporary_environment(folder: str) -> dict[str, str]:
    """Names of the folder for temporary files, on every system."""
    return dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)


class Programs:
    """Where programs are, looked up once for each name and search path."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], str] = {}

    def find(self, program: str, folder: Path, environment: Mapping[str, str]) -> str:
        """The file to run for *program*: a name on PATH, or a path as seen from *folder*.

        Raises:
            StageError: when there is none.
        """
        search = environment.get("PATH", os.defpath)
        at = (program, search, str(folder))
        if at not in self._found:
            is_path = os.path.dirname(program) != ""  # noqa: PTH120 - a text, not a file
            # A relative path is looked for in the folder of the stage, not in that of this process.
            found = shutil.which(str(folder / program) if is_path else program, path=search)
            if found is None:
                where = "in the project" if is_path else "on PATH"
                raise StageError(
                    f"{program} was not found {where}, or may not be run.",
                    advice="Give it permission to be run, or name the program that reads it first: [python, script.py]."
                    if is_path
                    else "Install it, or name it by its path.",
                )
            self._found[at] = found
        return self._found[at]
