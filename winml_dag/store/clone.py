"""Private copies of files: extents shared by the file system where it can (reflink), bytes copied where it cannot.

Never a hard or symbolic link: whoever writes to a linked copy writes into the cache, and onnx's loader of external data
refuses both ("multiple hard links, indicating a potential hardlink attack").
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from winml_dag.errors import InputError
from winml_dag.store.chunks import BIG_BYTES
from winml_dag.store.digest import SMALL_BYTES, DigestFunction, copy_and_digest, digest_bytes, digest_file, new_hash
from winml_dag.store.files import create, in_words, is_executable, make_executable, open_to_read, read_rest, write
from winml_dag.store.kernelcopy import copy_by_kernel

_FICLONE = 0x40049409


def clone_file(source: Path, target: Path, function: DigestFunction = "xxh3-128") -> str:
    """Make *target*, which must not exist, an ordinary writable file with the bytes of *source*, executable where that
    is; return their digest.

    Raises:
        InputError: when *source* cannot be read.
        StoreError: when *target* cannot be written.
    """
    try:
        opened = open(source, "rb", buffering=0)  # noqa: SIM115  # only opening it can be the user's fault
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}.") from error
    with opened, in_words(f"Cannot copy {source} to {target}"):
        digest, _ = _clone(opened.fileno(), str(target), function)
        if is_executable(os.fstat(opened.fileno())):
            make_executable(target)
        return digest


def clone_and_digest(source: Path | str, target: Path | str, function: DigestFunction) -> tuple[str, int]:
    """Like :func:`clone_file`, for files of our own: raises OSError as it comes. Returns the size in bytes too."""
    opened = open_to_read(source)
    try:
        return _clone(opened, str(target), function)
    finally:
        os.close(opened)


def _clone(source: int, target: str, function: DigestFunction) -> tuple[str, int]:
    """Digest and size of what *target* got. The mode comes from the umask, as for any new file."""
    opened = create(target)
    try:
        try:
            return _fill(source, opened, target, function)
        finally:
            os.close(opened)
    except BaseException:
        with suppress(OSError):
            os.unlink(target)  # noqa: PTH108 - thousands of small files
        raise


def _fill(source: int, opened: int, target: str, function: DigestFunction) -> tuple[str, int]:
    status = os.fstat(source)
    if _reflink(source, opened, status.st_dev):
        # From the target: what counts is what its reader will get.
        return digest_file(target, function), os.fstat(opened).st_size
    if status.st_size <= SMALL_BYTES:
        data = read_rest(source, status.st_size)
        write(opened, data)
        return digest_bytes(data, function), len(data)
    if status.st_size >= BIG_BYTES:
        hasher = new_hash(function)
        if copy_by_kernel(source, opened, target, hasher):
            return f"{function}:{hasher.hexdigest()}", os.fstat(opened).st_size
    with (
        open(source, "rb", buffering=0, closefd=False) as reading,
        open(opened, "wb", buffering=0, closefd=False) as writing,
    ):
        digest = copy_and_digest(reading, writing, function)
    return digest, os.fstat(opened).st_size


if sys.platform == "linux":
    import fcntl

    # Devices whose file system has said that it shares nothing; asking it for each of thousands of files takes 15 us.
    _sharing_nothing: set[int] = set()

    def _reflink(source: int, target: int, device: int) -> bool:
        """*device*: that of the source."""
        if device in _sharing_nothing:
            return False
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            # Another device, or a file system that shares nothing: the error numbers differ between file systems.
            # This one is Linux's own, said when both files are on one that cannot do it.
            if error.errno == errno.EOPNOTSUPP:
                _sharing_nothing.add(device)
            return False
        return True

else:

    def _reflink(source: int, target: int, device: int) -> bool:  # noqa: ARG001
        # APFS and ReFS clone by path, with the mode and times of the source; copied until that is worth its own code.
        return False
