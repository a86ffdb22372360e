"""The output of a stage: a named, immutable set of files, identified by its content.

A graph file and its weights (``export.onnx`` + ``export.onnx.data``) belong together, so they are one artifact. Its
digest covers the relative names and the digests of the files, never a folder, a time or an owner.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from winml_dag.canonical import JsonObject, JsonValue, canonical_json
from winml_dag.errors import StoreError
from winml_dag.store.files import check_name, files_below, name_below


@dataclass(frozen=True, slots=True, order=True)
class FileEntry:
    """One file of an artifact.

    ``name`` is relative, ``digest`` is of its bytes (``xxh3-128:...``), ``size`` is in bytes. ``executable`` is set if
    the system that made it supports that.
    """

    name: str
    digest: str
    size: int
    executable: bool = False

    def to_json(self) -> JsonObject:
        # Omitted for nearly every file: it would be in every record and digest.
        mode = {"executable": True} if self.executable else {}
        return {"name": self.name, "digest": self.digest, "size": self.size, **mode}


@dataclass(frozen=True)
class Artifact:
    """The files of an artifact, sorted by name."""

    files: tuple[FileEntry, ...]

    @classmethod
    def of(cls, files: Iterable[FileEntry]) -> Artifact:
        ordered = tuple(sorted(files))
        # Compare case-folded names: the same record must be usable on file systems that ignore case.
        folded = [check_name(file.name).casefold() for file in ordered]
        if len(set(folded)) != len(folded):
            raise StoreError(f"An artifact has one name twice: {', '.join(file.name for file in ordered)}.")
        return cls(ordered)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` over names, digests, sizes and modes.

        The data is small, and what a key is made from must be collision-resistant.
        """
        text = canonical_json(
            [[file.name, file.digest, file.size, *([True] if file.executable else [])] for file in self.files]
        )
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def to_json(self) -> list[JsonValue]:
        return [file.to_json() for file in self.files]

    @classmethod
    def from_json(cls, value: JsonValue) -> Artifact:
        """Rebuild from a record. Raises StoreError for anything that :meth:`to_json` would not have written."""
        if not isinstance(value, list):
            raise StoreError("An artifact in a record is not a list of files.")
        return cls.of(_file_from_json(file) for file in value)


DIGEST = re.compile(r"(xxh3-128):([0-9a-f]{32})|(sha256):([0-9a-f]{64})")


def _file_from_json(value: JsonValue) -> FileEntry:
    mode = {"executable"} if isinstance(value, Mapping) and value.get("executable") is True else set[str]()
    if isinstance(value, Mapping) and value.keys() == {"name", "digest", "size", *mode}:
        name, digest, size = value["name"], value["digest"], value["size"]
        texts = isinstance(name, str) and isinstance(digest, str) and DIGEST.fullmatch(digest)
        if texts and isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            return FileEntry(str(name), str(digest), size, bool(mode))
    raise StoreError(f"A file in a record is malformed: {value!r}.")


def output_files(slot: str, folder: Path | str) -> dict[str, str]:
    """The files of output *slot* in *folder*: their paths by their names inside the artifact, sorted.

    Raises:
        StoreError: for a link, a special file, an unsafe name, or no file at all.
        OSError: when the folder cannot be read.
    """
    # If the folder were a link, the files at its target would be moved away.
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise StoreError(f"Output {slot!r} is not a folder.")
    files = {}
    for entry in files_below(folder):
        name = name_below(folder, entry.path)
        if not entry.is_file(follow_symlinks=False):
            what = "a link" if entry.is_symlink() else "no ordinary file"
            raise StoreError(f"{name} in output {slot!r} is {what}.", advice="A stage must write files of its own.")
        files[name] = entry.path
    if not files:
        raise StoreError(f"Output {slot!r} is empty.", advice="Its stage succeeded but wrote nothing; see its log.")
    # Reject unsafe names, and names that differ only in case, before any file is moved.
    Artifact.of(FileEntry(name, "", 0) for name in files)
    return files
