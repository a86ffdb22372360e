"""What a stage left in an output folder: plain files with safe names, or a refusal that says what is wrong."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from winml_dag.errors import StoreError
from winml_dag.store.artifact import Artifact, FileEntry
from winml_dag.store.files import files_below, name_below


@dataclass(frozen=True)
class OutputFile:
    """A file to store: its name inside the artifact, and where it lies (as text: thousands are small)."""

    name: str
    place: str

    @property
    def path(self) -> Path:
        return Path(self.place)


def output_files(slot: str, folder: Path | str) -> list[OutputFile]:
    """The files of output *slot* in *folder*, sorted by name.

    Raises:
        StoreError: for a link, a special file, an unsafe name, or no file at all.
        OSError: when the folder cannot be read.
    """
    # A link in place of the folder would have the files of wherever it leads moved away.
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise StoreError(f"Output {slot!r} is not a folder.")
    files = []
    for entry in files_below(folder):
        name = name_below(folder, entry.path)
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "no ordinary file"
            raise StoreError(f"{name} in output {slot!r} is {what}.", advice="A stage must write files of its own.")
        files.append(OutputFile(name, entry.path))
    if not files:
        raise StoreError(f"Output {slot!r} is empty.", advice="Its stage ended well but wrote nothing; see its log.")
    # Refuses unsafe names, and two that differ only in case, while nothing has been moved yet.
    Artifact.of(FileEntry(file.name, "", 0) for file in files)
    return files
