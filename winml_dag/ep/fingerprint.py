"""The library files of an execution provider: what compiles a model, by content.

A version number is not enough for a key: the same version of a provider can be built twice, and its libraries are
replaced by hand when a driver team sends a fix.
"""

from __future__ import annotations

from pathlib import Path

from winml_dag.ep.registry import ExecutionProvider, package_folder

_SHARED_LIBRARY = (".dll", ".so", ".dylib")
_IN_NAME = ".so."  # libtensorrt_rtx.so.1.7.1


def library_files(ep: ExecutionProvider) -> tuple[Path, ...]:
    """Every shared library of the plugin package of *ep*, sorted by its path within it, without importing anything.

    Empty when the plugin is not installed, and for providers that are part of their build of onnxruntime: there, its
    version tells.
    """
    if not ep.plugin_module or (folder := package_folder(ep.plugin_module)) is None:
        return ()
    files = (path for path in folder.rglob("*") if path.suffix in _SHARED_LIBRARY or _IN_NAME in path.name)
    return tuple(sorted(files, key=lambda path: path.relative_to(folder).as_posix()))


def library_folders(ep: ExecutionProvider) -> tuple[Path, ...]:
    """The folder of the plugin package of *ep*, first, and those in it: a library may be added to any of them."""
    if not ep.plugin_module or (folder := package_folder(ep.plugin_module)) is None:
        return ()
    return (folder, *sorted(path for path in folder.rglob("*") if path.is_dir() and path.name != "__pycache__"))
