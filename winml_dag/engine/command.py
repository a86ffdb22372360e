"""How to start a command: fill placeholders, find the program, build a minimal environment.

Any other variable of the user's environment could change the output bytes without being in the key.
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

# Doubled braces are escapes. Other braces that are not placeholders belong to the shell, awk or JSON.
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(inputs|outputs|config)\.([^{}\s]*)\}")

# Variables that programs need to start and to find their own files. None of them is in a key, so none may affect
# results: no library path, no Python environment variables, no user name. A stage that needs one declares it, which
# puts it in the key.
_KEPT = ("PATH", "HOME")
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
    """*text* with ``{inputs.SLOT}``, ``{outputs.SLOT}`` and ``{config.NAME}`` replaced by the values in *names*.

    *names* is keyed by section, then by name. ``{{`` and ``}}`` are escaped braces. All other braces are kept as they
    are, since shells and awk need them.
    """
    if "{" not in text and "}" not in text:
        return text

    def filled(match: re.Match[str]) -> str:
        section, name = match.groups()
        if section is None:
            return match[0][0]
        # Planning the recipe has already rejected unknown names.
        return names[section].get(name, match[0])

    return PLACEHOLDER.sub(filled, text)


def config_texts(config: JsonObject) -> dict[str, str]:
    """The values of ``{config.NAME}``: strings unchanged, everything else as JSON."""
    values = config.get("config")
    return {name: _text(value) for name, value in values.items()} if isinstance(values, Mapping) else {}


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def minimal_environment() -> dict[str, str]:
    """The environment of every command, without the temporary folder and the variables that its stage declares."""
    kept = _KEPT_ON_WINDOWS if sys.platform == "win32" else _KEPT
    return {name: os.environ[name] for name in kept if name in os.environ} | _FIXED


def find_program(program: str, folder: Path, environment: Mapping[str, str]) -> str:
    """The file to run for *program*: a name on PATH, or a path relative to *folder*.

    Raises:
        StageError: when the program is not found.
    """
    is_path = os.path.dirname(program) != ""  # noqa: PTH120 - a string, not a file
    # A relative path is resolved from the stage's folder, not from the folder of this process.
    found = shutil.which(str(folder / program) if is_path else program, path=environment.get("PATH", os.defpath))
    if found is None:
        where = "in the project" if is_path else "on PATH"
        raise StageError(
            f"{program} was not found {where}, or may not be run.",
            advice="Give it permission to be run, or name the program that reads it first: [python, script.py]."
            if is_path
            else "Install it, or name it by its path.",
        )
    return found
