"""Private copies of files: extents shared by the file system where it can (reflink), bytes copied where it cannot.

Never a hard or symbolic link: whoever writes to a linked copy writes into the cache, and onnx's loader of external data
refuses both ("multiple hard links, indicating a potential hardlink attack").
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from winml_dag.errors import InputError
from winml_dag.store.digest import DigestFunction, copy_and_digest, digest_file
from winml_dag.store.files import in_words

_FICLONE = 0x40049409


def clone_file(source: Path, target: Path, function: DigestFunction = "xxh3-128") -> str:
    """Make *target*, which must not exist, an ordinary writable file with the bytes of *source*; return their digest.

    Raises:
        InputError: when *source* cannot be read.
        StoreError: when *target* cannot be written.
    """
    try:
        opened = open(source, "rb", buffering=0)  # noqa: SIM115  # only opening it can be the user's fault
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}.") from error
    with opened, in_words(f"Cannot copy {source} to {target}"):
        return _clone(opened, target, function)


def clone_and_digest(source: Path, target: Path, function: DigestFunction) -> str:
    """Like :func:`clone_file`, for files of our own: raises OSError as it comes."""
    with open(source, "rb", buffering=0) as opened:
        return _clone(opened, target, function)


def _clone(source: BinaryIO, target: Path, function: DigestFunction) -> str:
    """The digest of what *target* got. The mode comes from the umask, as for any new file."""
    # "x" follows no link that somebody left under the target's name, and overwrites nothing.
    with open(target, "xb", buffering=0) as opened:
        try:
            if not _reflink(source, opened):
                # Through buffers rather than copy_file_range, which was no faster, and hashed on their way.
                return copy_and_digest(source, opened, function)
            # From the target: what counts is what its reader will get.
            return digest_file(target, function)
        except BaseException:
            opened.close()
            with suppress(OSError):
                target.unlink()
            raise


if sys.platform == "linux":
    import fcntl

    def _reflink(source: BinaryIO, target: BinaryIO) -> bool:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            # Another device, or a file system that shares nothing: the error numbers differ between file systems.
            return False
        return True

else:

    def _reflink(source: BinaryIO, target: BinaryIO) -> bool:  # noqa: ARG001
        # APFS and ReFS clone by path, with the mode and times of the source; copied until that is worth its own code.
        return False
