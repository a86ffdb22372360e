"""The library files of an execution provider, by content, since they compile a model.

A version number is not sufficient for a key: a provider of one version can be built twice, and its libraries are
replaced by hand when a driver team sends a fix.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from winml_dag.ep.availability import package_folder, package_of, search_path
from winml_dag.ep.environments import Environment
from winml_dag.ep.provider import ExecutionProvider
from winml_dag.ep.windowsml import library_in_catalog
from winml_dag.errors import UsageError
from winml_dag.file_reading import before_reading

_SHARED_LIBRARY = (".dll", ".so", ".dylib")
_IN_NAME = ".so."  # libtensorrt_rtx.so.1.7.1


@dataclass(frozen=True)
class Libraries:
    """``files``: every shared library of a provider, sorted by path relative to the first of ``folders``.

    ``folders`` are all folders in which a library may be added.
    """

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()

    def names(self) -> list[str]:
        """Names include the folder, because there may be one of the same name for each processor."""
        return [path.relative_to(self.folders[0]).as_posix() for path in self.files]


def libraries_of(ep: ExecutionProvider, environment: Environment | None) -> Libraries:
    """Return the libraries of *ep* in *environment*, or here, without importing anything that loads them.

    For a provider that is compiled into onnxruntime, these are all libraries of that build. Empty if it is missing.

    Raises:
        UsageError: only that environment has the information.
    """
    folder = _folder(ep, environment)
    if folder is None or not folder.is_dir():
        return Libraries()
    inside = sorted(path for path in folder.rglob("*") if path.is_dir() and path.name != "__pycache__")
    folders = (folder, *inside)
    for each in folders:
        before_reading(each)
    files = (path for path in folder.rglob("*") if path.suffix in _SHARED_LIBRARY or _IN_NAME in path.name)
    return Libraries(tuple(sorted(files, key=lambda path: path.relative_to(folder).as_posix())), folders)


def _folder(ep: ExecutionProvider, environment: Environment | None) -> Path | None:
    package = package_of(ep, environment)
    if package is None:
        return None
    if package.catalog:
        library = library_in_catalog(ep.name)
        if library is None and environment is not None:
            raise UsageError(
                f"{environment.where} has {ep.name} from the catalog of Windows ML, which cannot be asked from here.",
                advice="Install windowsml here as well.",
            )
        return None if library is None else library.parent
    if package.plugin:
        return package_folder(package.plugin, search_path(environment))
    runtime = package_folder("onnxruntime", search_path(environment))
    return None if runtime is None else runtime / "capi"
