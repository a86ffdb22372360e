"""Other Python environments that the user configures for execution providers with conflicting packages.

onnxruntime, onnxruntime-openvino and onnxruntime-gpu are builds of one library under one name: only one of them can be
installed in an environment. Another environment is inspected only by its files; no process is started, because planning
uses this.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winml_dag.configuration import CONFIG_VARIABLE, ENVIRONMENTS_VARIABLE, TABLES, config_file, expanded
from winml_dag.errors import UsageError
from winml_dag.file_reading import before_reading, read_text

# The oldest Python that this package supports: workers import it there.
OLDEST_PYTHON = (3, 11)

_MARKER = "pyvenv.cfg"
_PYTHONS = ("Scripts/python.exe", "python.exe") if sys.platform == "win32" else ("bin/python",)
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Named:
    """An environment as configured: ``ep`` as written in ``source``, and ``where``, the location for messages."""

    ep: str
    folder: Path
    source: str
    where: str


@dataclass(frozen=True)
class Environment:
    """A Python environment other than the current one.

    Attributes:
        folder: of the venv, or of the conda environment; absolute.
        python: its interpreter.
        site_packages: the folders of its packages, in search order.
        where: the location of its configuration, for messages.
    """

    folder: Path
    python: Path
    site_packages: tuple[Path, ...]
    where: str

    @property
    def looked_at(self) -> tuple[Path, ...]:
        """The files and folders that identify this environment and the packages in it."""
        marker = self.folder / _MARKER
        return (self.python, *self.site_packages, *([marker] if marker.is_file() else ()))


def named_environments() -> tuple[Named, ...]:
    """Return every configured environment; those of the variable come first and take precedence over the file.

    Raises UsageError if a configuration file cannot be read or has invalid contents.
    """
    return (*_of_variable(os.environ.get(ENVIRONMENTS_VARIABLE, "")), *_of_file())


def _of_variable(text: str) -> Iterator[Named]:
    for part in filter(None, (part.strip() for part in text.split(os.pathsep))):
        ep, equals, folder = part.partition("=")
        if not (equals and ep.strip() and folder.strip()):
            raise UsageError(
                f"{ENVIRONMENTS_VARIABLE} has {part!r}, which names no environment.",
                advice=f"Write EP=FOLDER, several with {os.pathsep!r} between them: openvino=/path/to/.venv-openvino",
            )
        yield Named(
            ep.strip(),
            expanded(folder.strip()).absolute(),
            ENVIRONMENTS_VARIABLE,
            f"{ep.strip()} in {ENVIRONMENTS_VARIABLE}",
        )


def _of_file() -> tuple[Named, ...]:
    path = config_file()
    before_reading(path)
    try:
        status = path.stat()
    except OSError:
        if os.environ.get(CONFIG_VARIABLE):
            raise UsageError(f"{CONFIG_VARIABLE} names {path}, which is not there.") from None
        return ()
    return _read(path.absolute(), status.st_mtime_ns, status.st_size)


@cache
def _read(path: Path, _mtime_ns: int, _size: int) -> tuple[Named, ...]:
    """Read the environments in *path*, cached because planning reads them several times.

    An edited file is another key of this cache.
    """
    import tomllib

    try:
        content = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    for key in content:
        if key not in TABLES:
            raise UsageError(
                f"{path} has the key {key!r}, which is not known.", advice=f"Known are: {', '.join(TABLES)}."
            )
    tables = content.get("ep", {})
    if not isinstance(tables, Mapping):
        raise UsageError(f"{path}: ep is not a table.", advice=_EXAMPLE)
    return tuple(_named(path, name, table) for name, table in tables.items())


_EXAMPLE = 'Write: [ep.openvino] and below it: environment = "/path/to/.venv-openvino"'


def _named(path: Path, name: str, table: object) -> Named:
    where = f"ep.{name}.environment in {path}"
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: ep.{name} is not a table.", advice=_EXAMPLE)
    for key in table:
        if key != "environment":
            raise UsageError(f"{path} has the key 'ep.{name}.{key}', which is not known.", advice="Known: environment.")
    folder = table.get("environment")
    if not (isinstance(folder, str) and folder):
        raise UsageError(f"{path}: ep.{name} needs environment, the folder of a Python environment.", advice=_EXAMPLE)
    return Named(name, path.parent / expanded(folder), str(path), where)


def look(named: Named) -> Environment | None:
    """Return the environment that *named* means; None if it is the current one.

    Raises UsageError if it does not exist, or workers cannot run in it.
    """
    folder, where = named.folder, named.where
    before_reading(folder / _MARKER)
    if not folder.is_dir():
        raise UsageError(f"{where} names {folder}, which is not there.", advice="Make that environment or correct it.")
    if folder.resolve() == Path(sys.prefix).resolve():
        return None
    python = next((folder / name for name in _PYTHONS if (folder / name).is_file()), None)
    if python is None:
        raise UsageError(
            f"{where} names {folder}, which is not a Python environment: there is no {' or '.join(_PYTHONS)} in it."
        )
    settings = _settings(folder / _MARKER)
    if settings.get("include-system-site-packages", "").lower() == "true":
        raise UsageError(
            f"{where} names {folder}, which also uses the packages of another Python, so it does not show what it has.",
            advice="Make it without --system-site-packages.",
        )
    version = _version(folder, settings)
    if version is not None and version < OLDEST_PYTHON:
        raise UsageError(
            f"{where} names {folder}, whose Python is {version[0]}.{version[1]}.",
            advice=f"Make it with Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer.",
        )
    packages = tuple(_site_packages(folder, version))
    for path in (python, *packages):
        before_reading(path)
    if not packages:
        raise UsageError(f"{where} names {folder}, which has no folder of packages (site-packages).")
    return Environment(folder, python, packages, where)


def _settings(marker: Path) -> dict[str, str]:
    """Return the settings of a venv; empty if it is not one."""
    try:
        lines = read_text(marker).splitlines()
    except (OSError, ValueError):
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _version(folder: Path, settings: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the version of its Python from files: a venv records it, a conda environment lists it as a package."""
    texts = [settings.get("version", ""), settings.get("version_info", "")]
    texts += [path.name.removeprefix("python-") for path in folder.glob("conda-meta/python-3.*.json")]
    texts += [path.parent.name for path in folder.glob("lib/python3.*/site-packages")]
    found = (_NUMBERS.search(text) for text in texts)
    return next(((int(match[1]), int(match[2])) for match in found if match), None)


def _site_packages(folder: Path, version: tuple[int, int] | None) -> Iterator[Path]:
    if sys.platform == "win32":
        if (folder / "Lib" / "site-packages").is_dir():
            yield folder / "Lib" / "site-packages"
        return
    if version is None:
        return
    name = f"python{version[0]}.{version[1]}"
    yield from (path for path in [folder / "lib" / name / "site-packages"] if path.is_dir())
    # Some Linux distributions keep packages with libraries in lib64; on others lib64 is a link to lib.
    if not (folder / "lib64").is_symlink() and (folder / "lib64" / name / "site-packages").is_dir():
        yield folder / "lib64" / name / "site-packages"
