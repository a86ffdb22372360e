from __future__ import annotations

import hashlib

import pytest
import xxhash

from winml_dag.errors import StoreError
from winml_dag.store import digest as module
from winml_dag.store.digest import BIG_BYTES, CHUNK_BYTES, copy_and_digest, digest_bytes, digest_file, split_digest

SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 5, BIG_BYTES, BIG_BYTES + 7]


def test_a_digest_is_written_with_its_function() -> None:
    assert digest_bytes(b"wine") == "xxh3-128:" + xxhash.xxh3_128(b"wine").hexdigest()
    digest = digest_bytes(b"wine", "sha256")
    assert digest == "sha256:" + hashlib.sha256(b"wine").hexdigest()
    assert ":".join(split_digest(digest)) == digest


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("function", "spare"), [("xxh3-128", True), ("xxh3-128", False), ("sha256", True)])
def test_a_file_has_the_digest_of_its_bytes_at_every_size_around_the_buffer(
    tmp_path, monkeypatch, size, function, spare
) -> None:
    monkeypatch.setattr(module, "has_spare_processor", lambda: spare)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "file").write_bytes(data)
    assert digest_file(tmp_path / "file", function) == digest_bytes(data, function)
    with open(tmp_path / "file", "rb", buffering=0) as source, open(tmp_path / "copy", "wb", buffering=0) as target:
        assert copy_and_digest(source, target, function) == digest_bytes(data, function)
    assert (tmp_path / "copy").read_bytes() == data


@pytest.mark.parametrize("text", ["", "md5:" + "0" * 32, "sha256:" + "0" * 32, "xxh3-128:" + "A" * 32, "sha256:../.."])
def test_what_is_no_digest_is_refused(text) -> None:
    with pytest.raises(StoreError, match="not a digest"):
        split_digest(text)
