"""Digests of files, and how the bytes of big ones pass through two threads."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import xxhash

from winml_dag.errors import StoreError
from winml_dag.store import digest as module
from winml_dag.store.clone import clone_and_digest
from winml_dag.store.digest import CHUNK_BYTES, chunks, digest_bytes, digest_file, overlap, split_digest

BIG_BYTES = 4 * CHUNK_BYTES
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 5, BIG_BYTES, BIG_BYTES + 7]


def test_digest_is_prefixed_with_its_function() -> None:
    assert digest_bytes(b"wine") == "xxh3-128:" + xxhash.xxh3_128(b"wine").hexdigest()
    digest = digest_bytes(b"wine", "sha256")
    assert digest == "sha256:" + hashlib.sha256(b"wine").hexdigest()
    assert ":".join(split_digest(digest)) == digest


@pytest.mark.parametrize("text", ["", "md5:" + "0" * 32, "sha256:" + "0" * 32, "xxh3-128:" + "A" * 32, "sha256:../.."])
def test_invalid_digest_is_refused(text) -> None:
    with pytest.raises(StoreError, match="not a digest"):
        split_digest(text)


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize(("function", "spare"), [("xxh3-128", True), ("xxh3-128", False), ("sha256", True)])
def test_file_and_copy_digests_match_bytes_around_buffer_sizes(
    tmp_path, monkeypatch, function, spare, by_kernel
) -> None:
    monkeypatch.setattr(module, "has_spare_processor", lambda: spare)
    monkeypatch.setattr(module, "BIG_BYTES", BIG_BYTES)
    if not by_kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    for size in SIZES:
        data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        source, target = tmp_path / "file", tmp_path / f"copy{size}"
        source.write_bytes(data)
        assert digest_file(source, function) == digest_bytes(data, function)
        assert clone_and_digest(source, target, function) == (digest_bytes(data, function), size)
        assert target.read_bytes() == data


def test_growing_file_is_read_to_its_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 8)
    (tmp_path / "source").write_bytes(b"0123456789" * 2)
    fed = b""
    with open(tmp_path / "source", "rb") as source, open(tmp_path / "source", "ab", buffering=0) as more:
        for number, chunk in enumerate(chunks(source.fileno(), 20)):
            fed += bytes(chunk)
            if number < 3:
                more.write(b"more")
    assert fed == (tmp_path / "source").read_bytes()


@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad sector"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_first", [True, False])
def test_errors_in_either_thread_are_raised_and_no_thread_remains(at, error, is_first) -> None:
    before, used = threading.active_count(), []

    def fail_at(number: int) -> int:
        if number == at:
            raise error
        return number

    def use(number: int) -> None:
        used.append(number if is_first else fail_at(number))

    with pytest.raises(type(error)) as caught:
        overlap(map(fail_at, itertools.count()) if is_first else itertools.count(), use)
    assert caught.value is error
    assert used == list(range(at))
    assert threading.active_count() == before


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="without preadv, one thread reads")
@pytest.mark.parametrize("at", [0, 1, 3])
def test_read_error_of_large_file_is_raised_and_no_thread_remains(tmp_path, monkeypatch, at) -> None:
    before, read = threading.active_count(), os.preadv

    def preadv(descriptor, buffers, offset):
        if offset == at * CHUNK_BYTES:
            raise OSError(errno.EIO, "bad sector")
        return read(descriptor, buffers, offset)

    monkeypatch.setattr(module, "has_spare_processor", lambda: True)
    monkeypatch.setattr(module, "BIG_BYTES", BIG_BYTES)
    monkeypatch.setattr(os, "preadv", preadv)
    (tmp_path / "file").write_bytes(bytes(BIG_BYTES))
    with pytest.raises(OSError, match="bad sector"):
        digest_file(tmp_path / "file")
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what runs right now")
def test_no_processor_is_spare_when_all_are_busy() -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        assert not module.has_spare_processor()
    finally:
        for process in busy:
            process.kill()
            process.communicate()
