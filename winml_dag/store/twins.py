"""The same bytes under the digest of another function, so that what was stored with one is found with the other.

Where links can be made, both names in the blobs folder are one file and take the room of one. Nothing ever writes to a
blob, and each name is checked, removed and set aside for itself.
"""

# Functions of os on paths that are text, as in ``blobs``.
# ruff: noqa: PTH101, PTH105

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from winml_dag.store.artifact import FileEntry
from winml_dag.store.blobs import STAMP_NS, Blobs
from winml_dag.store.chunks import CHUNK_BYTES
from winml_dag.store.clone import clone_and_digest
from winml_dag.store.digest import DigestFunction, new_hash, split_digest
from winml_dag.store.files import open_to_read, partial_in, remove_file
from winml_dag.store.rows import Rows


def make_twin(blobs: Blobs, digest: str, function: DigestFunction) -> str | None:
    """Have the blob of *digest* under its digest of *function* too, and return that; None when it is not here. It is
    read once for both digests; one that is damaged goes to quarantine, and has no twin.

    Raises:
        OSError: when it cannot be read, or its twin not be written.
    """
    blob = blobs.path(digest)
    try:
        if os.lstat(blob).st_mtime_ns != STAMP_NS and not blobs.is_sound(digest):
            return None
        same, other = _digests(blob, digest, function)
        # Looked at afterwards: what is written to while it is read has another time.
        stamped = os.lstat(blob).st_mtime_ns == STAMP_NS
    except FileNotFoundError:
        return None
    if not same:
        blobs.set_aside(blob)
    if not (same and stamped):
        return None
    _put(blobs, blob, other)
    return other


def twins_of(blobs: Blobs, rows: Rows, files: Iterable[FileEntry], function: DigestFunction) -> dict[str, str] | None:
    """The digest of *function* for that of each of *files*, each with a blob under it; None when one is not here. Known
    ones are remembered in *rows*. Raises as :func:`make_twin`.
    """
    digests = {file.digest for file in files}
    known = rows.read("adopted", digests)
    found: dict[str, str] = {}
    for digest in digests:
        twin = digest if digest.startswith(f"{function}:") else known.get(digest)
        if not isinstance(twin, str) or not blobs.path(twin).exists():
            twin = make_twin(blobs, digest, function)
        if twin is None:
            return None
        found[digest] = twin
    rows.write("adopted", {digest: twin for digest, twin in found.items() if known.get(digest) != twin != digest})
    return found


def _digests(blob: Path, digest: str, function: DigestFunction) -> tuple[bool, str]:
    """Whether the bytes are those of *digest*, and their digest of *function*."""
    known, digits = split_digest(digest)
    one, other = new_hash(known), new_hash(function)
    opened = open_to_read(blob)
    try:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, os.fstat(opened).st_size + 1)))
        with open(opened, "rb", buffering=0, closefd=False) as source:
            while count := source.readinto(buffer):
                one.update(buffer[:count])
                other.update(buffer[:count])
    finally:
        os.close(opened)
    return one.hexdigest() == digits, f"{function}:{other.hexdigest()}"


def _put(blobs: Blobs, blob: Path, digest: str) -> None:
    target = blobs.path(digest)
    if os.path.lexists(target) and blobs.is_sound(digest):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_in(str(target.parent))
    try:
        try:
            os.link(blob, partial)
        except OSError:
            # No links here, or too many of one file. Made by ourselves, so its digest is made sure of again.
            copied, _ = clone_and_digest(blob, partial, split_digest(digest)[0])
            if copied != digest:
                return
            os.utime(partial, ns=(STAMP_NS, STAMP_NS))
            os.chmod(partial, 0o444)
        os.replace(partial, target)
    finally:
        # Renaming one link over another of the same file leaves both.
        with suppress(FileNotFoundError):
            remove_file(partial)
