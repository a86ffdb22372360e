"""The files that a model names: its external data and the binaries of its EPContext nodes.

The names come out of a file that anybody may have written, so a name that leaves the model's folder is refused before
anything is opened.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from winml_dag.errors import InputError
from winml_dag.names import is_safe_part


def sidecar_name(model: Path, location: str) -> str:
    """*location* in its shortest form (``./a.data`` is ``a.data``), safe on every system.

    Raises:
        InputError: when it is absolute, leaves the model's folder or means a device.
    """
    parts = PurePosixPath(location).parts
    if not parts or not all(map(is_safe_part, parts)):
        raise InputError(
            f"{model} refers to the file {location!r}, which is not a plain name inside the model's own folder.",
            advice="Only use models from a source you trust; save it again with its data beside it.",
        )
    return "/".join(parts)


def sidecar_path(model: Path, location: str) -> Path:
    """Where the file lies that *model* refers to as *location*.

    Raises:
        InputError: when the name is unsafe (see :func:`sidecar_name`), the file is missing, or a link leads to it.
    """
    path = model.parent
    for part in PurePosixPath(sidecar_name(model, location)).parts:
        path /= part
        if path.is_symlink():
            raise InputError(
                f"{path}, which {model.name} needs, is a link, and a link could lead out of the model's folder.",
                advice="Put the file itself there.",
            )
    if not path.is_file():
        raise InputError(
            f"The file {path}, which {model.name} needs, does not exist.",
            advice="Copy the model together with its data files.",
        )
    return path
