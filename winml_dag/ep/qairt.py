"""Qualcomm's own compiler, the QAIRT SDK: finds its tools in the folder that the user names.

Only files are checked and nothing is started, because planning uses this.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from winml_dag.ep.provider import is_arm
from winml_dag.errors import InputError, UsageError
from winml_dag.file_reading import before_reading

CONVERTER = "qairt-converter"
GENERATOR = "qnn-context-binary-generator"

# The options of QNN's execution provider that the SDK's tools also support.
OPTIONS = frozenset(
    {"enable_htp_fp16_precision", "htp_arch", "htp_graph_finalization_optimization_mode", "soc_model", "vtcm_mb"}
)

_LIBRARIES = ("QnnHtp", "QnnHtpPrepare", "QnnHtpNetRunExtensions", "QnnModelDlc", "QnnIr")
# Required; the others are not in every SDK.
_NEEDED = ("QnnHtp", "QnnHtpNetRunExtensions")
_ABOUT = "sdk.yaml"
_VERSION = re.compile(r"^version:\s*[\"']?([\w.-]+)", re.MULTILINE)
_IN_NAME = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class QairtSdk:
    """What compiling needs of an SDK.

    Attributes:
        root: its folder.
        host: the name of its folders of programs and libraries for this machine.
        version: from its file, else from its folder's name; empty if neither has it.
        python: the Python of the environment in its folder, ``venv`` or ``.venv``; None for the current one.
        site_packages: the package folders of that environment.
        files: its tools and libraries, whose content determines their results.
        version_files: the file with its version, if it exists.
    """

    root: Path
    host: str
    version: str
    python: Path | None
    site_packages: tuple[Path, ...]
    files: tuple[Path, ...]
    version_files: tuple[Path, ...] = ()


def host_name() -> str:
    """Return the SDK's name for this kind of machine."""
    if sys.platform == "win32":
        return "aarch64-windows-msvc" if is_arm() else "x86_64-windows-msvc"
    return "aarch64-oe-linux-gcc11.2" if is_arm() else "x86_64-linux-clang"


def program(name: str) -> str:
    """Return the file name of the native program *name*."""
    return f"{name}.exe" if sys.platform == "win32" else name


def library(name: str) -> str:
    """Return the file name of the library *name*."""
    return f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"


def find_sdk(root: Path) -> QairtSdk:
    """Return the SDK in the folder *root*.

    Raises:
        InputError: the folder does not exist.
        UsageError: it is not an SDK, or lacks what compiling needs on this machine.
    """
    if not root.is_dir():
        raise InputError(
            f"compile.qnn_sdk_root: there is no folder {root}.", advice="Name the folder that the QAIRT SDK is in."
        )
    host = host_name()
    tools = {name: root / "bin" / host / name for name in (CONVERTER, program(GENERATOR))}
    libraries = {name: root / "lib" / host / library(name) for name in _LIBRARIES}
    needed = (*tools.values(), *(libraries[name] for name in _NEEDED))
    if missing := [path.relative_to(root).as_posix() for path in needed if not path.is_file()]:
        raise UsageError(
            f"compile.qnn_sdk_root: {root} is no QAIRT SDK for {host}: it has no {missing[0]}.",
            advice="Name the folder of a QAIRT SDK from 2.31 on, the one that has bin and lib in it.",
        )
    python, site_packages = _environment(root)
    folders = dict.fromkeys(path.parent for path in (*tools.values(), *libraries.values()))
    for path in (root, root / _ABOUT, *folders, *site_packages):
        before_reading(path)
    files = (*tools.values(), *(path for path in libraries.values() if path.is_file()))
    version_files = tuple(path for path in [root / _ABOUT] if path.is_file())
    return QairtSdk(root, host, _version(root), python, site_packages, files, version_files)


def _version(root: Path) -> str:
    try:
        found = _VERSION.search((root / _ABOUT).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        found = None
    if found is not None:
        return found[1]
    named = _IN_NAME.search(root.resolve().name)
    return named[0] if named else ""


def _environment(root: Path) -> tuple[Path | None, tuple[Path, ...]]:
    for name in ("venv", ".venv"):
        folder = root / name
        python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        if python.is_file():
            found = [*sorted(folder.glob("lib/python3.*/site-packages")), folder / "Lib" / "site-packages"]
            return python, tuple(path for path in found if path.is_dir())
    return None, ()
