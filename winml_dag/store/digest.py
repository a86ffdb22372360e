"""Digests of bytes and files, prefixed with the function: ``xxh3-128:<32 hex>`` or ``sha256:<64 hex>``.

xxh3-128 is for data that stays on one machine (so fast that hashing is never the bottleneck), sha256 for data that
others may write. Also JSON text with a checksum. Digests of the user's files are cached by file signature, so that an
unchanged file costs one stat.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar, cast

import xxhash

from winml_dag.canonical import JsonValue
from winml_dag.errors import InputError, StoreError
from winml_dag.file_reading import CHANGED, Signature, is_racy, signature_of, was_read
from winml_dag.store.artifact import DIGEST, FileEntry
from winml_dag.store.files import open_to_read

if TYPE_CHECKING:
    from concurrent.futures import Future

    from winml_dag.store.index import Index

T = TypeVar("T")

# Below this, starting a thread costs more than it gains (measured: break-even at 16 MiB for hashing, at 6 MiB for
# copying).
BIG_BYTES = 16 << 20
# Smaller chunks hand over too often; larger ones do not fit in the processor's cache.
CHUNK_BYTES = 1 << 20


class Hash(Protocol):
    """The common interface of xxhash and hashlib."""

    def update(self, data: memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def overlap(pieces: Iterable[T], use: Callable[[T], None]) -> None:
    """*use* each of *pieces* in order, in a second thread while the next one is made. Raises what either raises."""
    # Imported here: up-to-date builds hash only small files.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as second:
        pending: Future[None] | None = None
        for piece in pieces:
            if pending is not None:
                pending.result()
            pending = second.submit(use, piece)
        if pending is not None:
            pending.result()


def use_each(pieces: Iterable[T], use: Callable[[T], None], size: int) -> None:
    """*use* each of *pieces* of a file of *size* bytes: overlapped where that is faster."""
    if size >= BIG_BYTES and has_spare_processor():
        overlap(pieces, use)
    else:
        for piece in pieces:
            use(piece)


def chunks(descriptor: int, size: int) -> Iterator[memoryview]:
    """The bytes of a file of *size* bytes from here on; each chunk is valid until the next but one is asked for."""
    # Read into reused buffers instead of mapping: truncating a mapped file ends the process with SIGBUS.
    # One byte more than the file has, so that a typical small file takes one read and the second one returns the end.
    # Clearing a whole mebibyte for each of thousands of small files would cost more than hashing them.
    length = min(CHUNK_BYTES, size + 1)
    with open(descriptor, "rb", buffering=0, closefd=False) as source:
        for buffer in itertools.cycle([memoryview(bytearray(length)) for _ in range(1 if size < CHUNK_BYTES else 2)]):
            count = source.readinto(buffer)
            if not count:
                return
            yield buffer[:count]


def has_spare_processor() -> bool:
    """Whether a second thread would find a free processor.

    Without one, two threads mostly wait for each other: copying took a third longer than with one. Returns True if the
    system does not report what is currently running.
    """
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            running = int(file.read(100).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return True
    # The calling thread runs too.
    return running <= (os.cpu_count() or 1) - 1


DigestFunction: TypeAlias = Literal["xxh3-128", "sha256"]

# A file up to this size is read at once; that is nearly every one of thousands.
SMALL_BYTES = 64 << 10

_NEW: dict[DigestFunction, Callable[[], Hash]] = {"xxh3-128": xxhash.xxh3_128, "sha256": hashlib.sha256}


def new_hash(function: DigestFunction) -> Hash:
    return _NEW[function]()


def is_digest(text: str) -> bool:
    """Whether *text* is a digest of a known function."""
    return DIGEST.fullmatch(text) is not None


def split_digest(digest: str) -> tuple[DigestFunction, str]:
    """The function and the hex digits of *digest*.

    Raises:
        StoreError: when it is not a digest.
    """
    match = DIGEST.fullmatch(digest)
    if match is None:
        raise StoreError(f"{digest!r} is not a digest.")
    return cast(DigestFunction, match[1] or match[3]), match[2] or match[4]


def digest_bytes(data: bytes, function: DigestFunction = "xxh3-128") -> str:
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
        hasher = new_hash(function)
        if size >= BIG_BYTES and hasattr(os, "preadv") and has_spare_processor():
            _hash_in_turns(descriptor, size, hasher)
        else:
            use_each(chunks(descriptor, size), hasher.update, size)
        return f"{function}:{hasher.hexdigest()}"
    finally:
        os.close(descriptor)


def read_rest(descriptor: int, size: int) -> bytes:
    """All bytes from here to the end of the file, which are *size* unless it is being written to."""
    # One byte more than expected, so that the first call reaches the end.
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(descriptor, size + 1):
        parts.append(part)
    return b"".join(parts)


def _hash_in_turns(descriptor: int, size: int, hasher: Hash) -> None:
    """Two threads read every other chunk each, and hash it when the one before it is hashed.

    Copying from the page cache takes several times as long as hashing, so both threads must read, and a chunk is hashed
    by the thread that read it, whose processor has it in its cache: 512 MiB take two thirds of :func:`overlap`'s time.
    """
    from concurrent.futures import ThreadPoolExecutor

    buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]

    def take(number: int, before: Future[None] | None) -> None:
        # Of two chunks at a time, the later one waits for the earlier one: their buffers are never the same.
        buffer, filled = buffers[number % 2], 0
        while count := os.preadv(descriptor, [buffer[filled:]], number * CHUNK_BYTES + filled):
            filled += count
        if before is not None:
            before.result()
        hasher.update(buffer[:filled])

    threads = ThreadPoolExecutor(2)
    try:
        last: Future[None] | None = None
        for number in range(-(-size // CHUNK_BYTES)):
            last = threads.submit(take, number, last)
        if last is not None:
            last.result()
    finally:
        threads.shutdown(cancel_futures=True)


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


_ATTEMPTS = 3


def _signature(path: Path) -> Signature:
    found = signature_of(path)
    if found is None:
        raise InputError(f"{path} is not a file.")
    return found


def _digest_in(row: JsonValue, found: Signature, function: DigestFunction) -> str | None:
    """The digest cached in *row*, if the row is for a file with the signature *found*."""
    if isinstance(row, list) and len(row) == 5 and isinstance(row[4], str) and row == [*found, row[4]]:
        try:
            return row[4] if split_digest(row[4])[0] == function else None
        except StoreError:
            return None
    return None


class Fingerprints:
    """Digests of files, by *function*, cached in *rows* of the index."""

    def __init__(self, rows: Index, function: DigestFunction = "xxh3-128") -> None:
        self._rows = rows
        self._function = function

    def digest(self, path: Path, like: str | None = None) -> str:
        """The digest of the file's bytes, with the hash function of *like* if it will be compared with that digest.

        Raises:
            InputError: when it is missing, unreadable, not a file, or keeps changing.
        """
        function = self._function if like is None else split_digest(like)[0]
        return self._entries([(path, path.name)], function)[0].digest

    def entry(self, path: Path, name: str) -> FileEntry:
        """The file as an entry of an artifact, under *name*. Raises as :meth:`digest` does."""
        return self.entries([(path, name)])[0]

    def entries(self, files: Sequence[tuple[Path, str]]) -> list[FileEntry]:
        """Like :meth:`entry` for many files, with one read from the index and one write to it."""
        return self._entries(files, self._function)

    def unchanged(self, path: Path, digest: str) -> bool:
        """Whether the file still has the bytes of *digest*; False if it is missing."""
        try:
            return self._entries([(path, path.name)], split_digest(digest)[0])[0].digest == digest
        except InputError:
            return False

    def _entries(self, files: Sequence[tuple[Path, str]], function: DigestFunction) -> list[FileEntry]:
        row_names = [f"{function}:{_address(path)}" for path, _ in files]
        known = self._rows.read("fingerprint", row_names)
        entries = []
        fresh: dict[str, JsonValue] = {}
        for (path, name), row_name in zip(files, row_names, strict=True):
            try:
                found = _signature(path)
                digest = _digest_in(known.get(row_name), found, function)
                if digest is None:
                    began_ns = time.time_ns()
                    found, digest = _measure(path, found, function)
                    # Do not cache a file that may change again with the same signature.
                    if not is_racy(str(path), found[CHANGED], began_ns):
                        fresh[row_name] = [*found, digest]
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror}.") from error
            was_read(path, found)
            entries.append(FileEntry(name, digest, found[0]))
        self._rows.write("fingerprint", fresh)
        return entries


def _measure(path: Path, before: Signature, function: DigestFunction) -> tuple[Signature, str]:
    for _ in range(_ATTEMPTS):
        digest = digest_file(path, function)
        after = _signature(path)
        if after == before:
            return after, digest
        before = after
    raise InputError(f"{path} keeps changing while it is being read.", advice="Try again when nothing writes to it.")


def _address(path: Path) -> str:
    # A name that is not valid in the file system's encoding needs its own row too.
    return os.path.abspath(path).encode("utf-8", "backslashreplace").decode()  # noqa: PTH100 # Path.absolute keeps ".."
