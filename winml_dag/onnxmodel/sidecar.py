"""The files that a model refers to: its external data and the binaries of its EPContext nodes.

The names come from an untrusted file, so a name that leaves the model's folder is refused before anything is opened.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from winml_dag.errors import InputError
from winml_dag.names import is_safe_part

if TYPE_CHECKING:
    from winml_dag.onnxmodel.inspect import ModelSummary

# Part of the name of every binary that several models share, so that no other binary has to be read.
SHARED = "_shared"

_CHUNK = 1 << 22
_LONGEST_NAME = 256


def sidecar_name(model: Path, location: str) -> str:
    """Return *location* in its shortest form (``./a.data`` is ``a.data``), safe on every system.

    Raises:
        InputError: it is absolute, leaves the model's folder or means a device.
    """
    parts = PurePosixPath(location).parts
    if not parts or not all(map(is_safe_part, parts)):
        raise InputError(
            f"{model} refers to the file {location!r}, which is not a plain name inside the model's own folder.",
            advice="Only use models from a source you trust; save it again with its data beside it.",
        )
    return "/".join(parts)


def sidecar_path(model: Path, location: str) -> Path:
    """Return the path of the file that *model* refers to as *location*.

    Raises:
        InputError: the name is unsafe (see :func:`sidecar_name`), the file is missing, or a link leads to it.
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


def shares_binary(model: Path, summary: ModelSummary) -> bool:
    """Return whether the binary of *model* has graphs that *summary* does not have, going by their names.

    QNN's emulator crashes when it loads such a model.
    """
    own = {context.partition for context in summary.ep_context}
    binaries = {context.sidecar for context in summary.ep_context if context.sidecar and SHARED in context.sidecar}
    # Names of graphs differ only in their numbers.
    pattern = re.compile(
        b"|".join(re.sub(rb"\d+", rb"\\d+", re.escape(name.encode())) for name in own if name) or b"$^"
    )
    return any(name.decode() not in own for binary in binaries for name in _found(model.parent / binary, pattern))


def _found(path: Path, pattern: re.Pattern[bytes]) -> set[bytes]:
    found: set[bytes] = set()
    with path.open("rb") as handle:
        rest = b""
        while chunk := handle.read(_CHUNK):
            # A name may span two chunks; truncated it would look like another one.
            text = rest + chunk
            whole = len(text) - _LONGEST_NAME if len(chunk) == _CHUNK else len(text)
            found.update(match[0] for match in pattern.finditer(text) if match.start() < whole)
            rest = text[-_LONGEST_NAME:]
    return found
