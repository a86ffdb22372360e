"""Digests of bytes and files, prefixed with the function: ``xxh3-128:<32 hex>`` or ``sha256:<64 hex>``.

xxh3-128 is for data that stays on one machine (so fast that hashing is never the bottleneck), sha256 for data that
others may write. Also JSON text with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, cast

import xxhash

from winml_dag.canonical import JsonValue
from winml_dag.errors import StoreError
from winml_dag.store.chunks import BIG_BYTES, CHUNK_BYTES, Hash, has_spare_processor, hash_in_chunks, write_all
from winml_dag.store.files import open_to_read, read_rest

DigestFunction: TypeAlias = Literal["xxh3-128", "sha256"]

_DIGEST = re.compile(r"(xxh3-128):([0-9a-f]{32})|(sha256):([0-9a-f]{64})")


# A file up to this size is read at once; that is nearly every one of thousands.
SMALL_BYTES = 64 << 10

_NEW: dict[DigestFunction, Callable[[], Hash]] = {"xxh3-128": xxhash.xxh3_128, "sha256": hashlib.sha256}


def new_hash(function: DigestFunction) -> Hash:
    """A hash without any data yet."""
    return _NEW[function]()


def split_digest(digest: str) -> tuple[DigestFunction, str]:
    """The function and the hex digits of *digest*.

    Raises:
        StoreError: when it is not a digest.
    """
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise StoreError(f"{digest!r} is not a digest.")
    return cast(DigestFunction, match[1] or match[3]), match[2] or match[4]


def digest_bytes(data: bytes, function: DigestFunction = "xxh3-128") -> str:
    """The digest of *data*."""
    if function == "xxh3-128":
        return "xxh3-128:" + xxhash.xxh3_128_hexdigest(data)
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_file(path: Path | str, function: DigestFunction = "xxh3-128") -> str:
    """The digest of the file's bytes. Raises OSError when it cannot be read."""
    descriptor = open_to_read(path)
    try:
        size = os.fstat(descriptor).st_size
        if size <= SMALL_BYTES:
            return digest_bytes(read_rest(descriptor, size), function)
        with open(descriptor, "rb", buffering=0, closefd=False) as source:
            return _digest_stream(source, function)
    finally:
        os.close(descriptor)


def copy_and_digest(source: BinaryIO, target: BinaryIO, function: DigestFunction = "xxh3-128") -> str:
    """Copy *source* to *target*, both open and unbuffered, and return the digest of the written bytes."""
    return _digest_stream(source, function, target)


def _digest_stream(source: BinaryIO, function: DigestFunction, target: BinaryIO | None = None) -> str:
    # Read into reused buffers instead of mapping: truncating a mapped file ends the process with SIGBUS.
    hasher = _NEW[function]()
    size = os.fstat(source.fileno()).st_size
    if size >= BIG_BYTES and has_spare_processor():
        hash_in_chunks(source, hasher, target)
    else:
        _hash_by_one(source, size, hasher, target)
    return f"{function}:{hasher.hexdigest()}"


def _hash_by_one(source: BinaryIO, size: int, hasher: Hash, target: BinaryIO | None) -> None:
    # One byte more than the file has, so that a typical small file takes one read and the second one returns the end.
    # Clearing a whole mebibyte for each of thousands of small files would cost more than hashing them.
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size + 1)))
    while count := cast("int", source.readinto(buffer)):  # type: ignore[attr-defined]  # BinaryIO lacks readinto
        chunk = buffer[:count]
        hasher.update(chunk)
        if target is not None:
            write_all(target, chunk)


_HEAD = len('["0123456789abcdef",')


def with_checksum(name: str, body: str) -> str:
    """``["<16 hex>",<body>]``: canonical JSON with a checksum over it and its *name*.

    One flipped bit in a database or a file can leave valid JSON with a wrong digest, size or name, and a row or file
    may end up under another's name. The checksum protects from damage, not from malice: a program that can write the
    text can write the checksum.
    """
    return f'["{_checksum(name, body)}",{body}]'


def checked(name: str, text: str) -> JsonValue:
    """The value of a text made by :func:`with_checksum`. Raises ValueError for any other text or name."""
    body = text[_HEAD:-1]
    if text != with_checksum(name, body):
        raise ValueError(f"{name} does not match its checksum.")
    try:
        return cast(JsonValue, json.loads(body))
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply.") from None


def _checksum(name: str, body: str) -> str:
    # "surrogatepass": damaged text must result in a wrong checksum, not in an encoding error.
    return xxhash.xxh3_64_hexdigest(f"{name}\n{body}".encode("utf-8", "surrogatepass"))
