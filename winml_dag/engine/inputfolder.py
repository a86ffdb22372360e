"""What lies in an input folder: all files below it, as whoever reads the folder finds them.

Links to folders are followed, since programs follow them: what they lead to is read, so it belongs in the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from winml_dag.engine.stage import SourceFile
from winml_dag.errors import InputError
from winml_dag.file_reading import before_reading


@dataclass(frozen=True)
class Listing:
    """``files`` by name, in order; ``folders``: all that were looked into; ``dangling``: links to nothing yet."""

    files: list[SourceFile] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    dangling: list[Path] = field(default_factory=list)


def list_folder(folder: Path, prefix: str) -> Listing:
    """The files below *folder*, each name with *prefix* before it.

    Raises:
        InputError: for a folder that cannot be read, or a link to a folder that it lies in.
    """
    found = Listing()
    try:
        _list(folder, prefix, (os.path.realpath(folder),), found)
    except OSError as error:
        raise InputError(f"{error.filename or folder} cannot be read: {error.strerror}.") from error
    return found


def _list(folder: Path, prefix: str, around: Iterable[str], found: Listing) -> None:
    found.folders.append(folder)
    before_reading(folder)
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        path = folder / entry.name
        if entry.is_file():
            found.files.append(SourceFile(f"{prefix}{entry.name}", path))
        elif entry.is_dir():
            real = os.path.realpath(path) if entry.is_symlink() else f"{[*around][-1]}{os.sep}{entry.name}"
            if any(real == outer for outer in around):
                raise InputError(
                    f"{path} is a link to a folder that it lies in, so the input has no end.",
                    advice="Remove the link, or name single files as inputs.",
                )
            _list(path, f"{prefix}{entry.name}/", (*around, real), found)
        elif entry.is_symlink() and not path.exists():
            found.dangling.append(path)
